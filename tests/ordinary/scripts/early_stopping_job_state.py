# equal
from math import inf

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=11)
x = torch.randn(112, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
job.share(model=model, optimizer=optimizer)
job.state.best = inf
job.state.bad = 0
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
    if val.metrics["loss"] < job.state.best:
        job.state.best = val.metrics["loss"]
        job.state.bad = 0
    else:
        job.state.bad += 1
    if job.state.bad >= 6:
        break

print("digest", job.digest())
