# equal
import copy
from math import inf

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=10)
x = torch.randn(112, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
best = {"loss": inf, "bad": 0, "epoch": 0, "weights": copy.deepcopy(model.state_dict())}
job.share(model=model, optimizer=optimizer, best=best)
data = job.loader(TensorDataset(x[:64], y[:64]), batch_size=16)
val = job.loader(TensorDataset(x[64:], y[64:]), batch_size=16, train=False)

for epoch in job.epochs(25):
    model.train()
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    for step in val:
        for inputs, targets in step:
            with torch.no_grad():
                step.log(loss=F.cross_entropy(model(inputs), targets))
    if val.metrics["loss"] < best["loss"]:
        best.update(loss=val.metrics["loss"], bad=0, epoch=epoch, weights=copy.deepcopy(model.state_dict()))
    else:
        best["bad"] += 1
        if best["bad"] >= 6:
            break

model.load_state_dict(best["weights"])
print("digest", job.digest())
