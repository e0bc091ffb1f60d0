# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

ACCUMULATE = 4
job = stretto.join(seed=13)
x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=8)

for epoch in job.epochs(4):
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets) / ACCUMULATE
            loss.backward()
            step.log(loss=loss)
        if (step.index + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()

print("digest", job.digest())
