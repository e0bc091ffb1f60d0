# refused alone: closure
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=59)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    for step in data:

        def closure():
            optimizer.zero_grad()
            total = 0.0
            for inputs, targets in step:
                loss = F.mse_loss(model(inputs), targets)
                loss.backward()
                total += loss.item()
            return total

        optimizer.step(closure)

print("digest", job.digest())
