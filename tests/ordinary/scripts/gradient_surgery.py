# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=54)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
first, second = (x.sum(1) > 0).long(), (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, first, second), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets, _ in step:
            loss = F.cross_entropy(model(inputs)[:, :2], targets)
            loss.backward()
            step.log(first=loss)
        kept = [p.grad for p in model.parameters()]
        optimizer.zero_grad()
        for inputs, _, targets in step:
            loss = F.cross_entropy(model(inputs)[:, 2:], targets)
            loss.backward()
            step.log(second=loss)
        # PCGrad: what conflicts with the first task's gradient is projected out of the second's
        product = sum((a * p.grad).sum() for a, p in zip(kept, model.parameters()))
        if product < 0:
            square = sum((a * a).sum() for a in kept)
            for a, p in zip(kept, model.parameters()):
                p.grad -= product / square * a
        for a, p in zip(kept, model.parameters()):
            p.grad += a
        optimizer.step()

print("digest", job.digest())
