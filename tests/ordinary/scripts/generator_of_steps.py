# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


def steps(job, data, epochs):
    for epoch in job.epochs(epochs):
        for step in data:
            yield epoch, step


job = stretto.join(seed=27)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch, step in steps(job, data, 10):
    for inputs, targets in step:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        step.log(loss=loss)
    optimizer.step()
    optimizer.zero_grad()

print("digest", job.digest())
