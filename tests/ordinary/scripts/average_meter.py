# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class AverageMeter:
    """As in the ImageNet example, by another name."""

    def __init__(self):
        self.total, self.count, self.average = 0.0, 0, 0.0

    def add(self, value, count):
        self.total += value * count
        self.count += count
        self.average = self.total / self.count


job = stretto.join(seed=4)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)
meter = AverageMeter()

for epoch in job.epochs(8):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            meter.add(loss.item(), len(inputs))
            step.log(loss=loss)
        optimizer.step()
    print(f"epoch {epoch}: this worker's loss so far is {meter.average:.4f}")

print("digest", job.digest())
