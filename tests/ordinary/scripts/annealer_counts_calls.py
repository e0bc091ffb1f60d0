# refused when scaled: `beta.t` is
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class Annealer:
    def __init__(self):
        self.t = 0

    def __call__(self):
        self.t += 1
        return 1 - math.exp(-self.t / 10)


job = stretto.join(seed=3)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)
beta = Annealer()

for epoch in job.epochs(8):
    for step in data:
        optimizer.zero_grad()
        weight = beta()
        for inputs, targets in step:
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, targets) + weight * outputs.pow(2).mean()
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
