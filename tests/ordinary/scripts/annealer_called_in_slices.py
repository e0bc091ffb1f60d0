# refused alone: `beta.t` was 0 and is
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class Annealer:
    """The weight of a penalty: grows a little with every call."""

    def __init__(self):
        self.t = 0

    def __call__(self):
        self.t += 1
        return 1 - math.exp(-self.t / 10)


job = stretto.join(seed=3)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)
beta = Annealer()

for epoch in job.epochs(8):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            out = model(inputs)
            loss = F.cross_entropy(out, targets) + beta() * out.pow(2).mean()
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
