# refused alone: `model.0.shift` was written to inside the loop over the slices
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(8))
        self.initialized = False

    def forward(self, x):
        if not self.initialized:
            self.shift.data.copy_(-x.mean(0))
            self.initialized = True
        return x + self.shift


job = stretto.join(seed=85)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)) + 3
y = (x.sum(1) > 24).long()
model = nn.Sequential(ActNorm(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
