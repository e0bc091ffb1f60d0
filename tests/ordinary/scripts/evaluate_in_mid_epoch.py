# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=21)
x = torch.randn(144, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
best = {"loss": 1e9}
job.share(model=model, optimizer=optimizer, best=best)
data = job.loader(TensorDataset(x[:96], y[:96]), batch_size=16, slices=8)
val = job.loader(TensorDataset(x[96:], y[96:]), batch_size=48, slices=8, train=False)

for epoch in job.epochs(6):
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if job.step % 5 == 4:
            model.eval()
            for checked in val:
                for inputs, targets in checked:
                    with torch.no_grad():
                        checked.log(loss=F.cross_entropy(model(inputs), targets))
            model.train()
            best["loss"] = min(best["loss"], val.metrics["loss"])

print("digest", job.digest())
