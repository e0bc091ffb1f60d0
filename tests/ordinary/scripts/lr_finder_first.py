# equal
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=33)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def find_rate(model):
    """On one batch and a copy of the model, before anything is shared."""
    best, best_loss = 1e-3, float("inf")
    for rate in (1e-3, 1e-2, 1e-1):
        trial = copy.deepcopy(model)
        sgd = torch.optim.SGD(trial.parameters(), lr=rate)
        for _ in range(5):
            sgd.zero_grad()
            loss = F.cross_entropy(trial(x[:16]), y[:16])
            loss.backward()
            sgd.step()
        if loss.item() < best_loss:
            best, best_loss = rate, loss.item()
    return best


optimizer = torch.optim.SGD(model.parameters(), lr=find_rate(model))
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
