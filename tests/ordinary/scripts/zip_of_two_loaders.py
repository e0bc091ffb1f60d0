# refused alone: zip over a training loader
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=18)
g = torch.Generator().manual_seed(1)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
source = job.loader(TensorDataset(torch.randn(64, 8, generator=g), torch.randint(0, 2, (64,), generator=g)), batch_size=16)
target = job.loader(TensorDataset(torch.randn(64, 8, generator=g), torch.randint(0, 2, (64,), generator=g)), batch_size=16)

for epoch in job.epochs(8):
    for a, b in zip(source, target):
        optimizer.zero_grad()
        for (x1, y1), (x2, y2) in zip(a, b):
            loss = F.cross_entropy(model(x1), y1) + F.cross_entropy(model(x2), y2)
            loss.backward()
        optimizer.step()

print("digest", job.digest())
