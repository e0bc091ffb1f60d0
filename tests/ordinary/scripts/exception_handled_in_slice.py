# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


def checked_loss(outputs, targets):
    if targets.sum() == 0:
        raise ValueError("a slice without positives")
    return F.binary_cross_entropy_with_logits(outputs, targets)


job = stretto.join(seed=26)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1, keepdim=True) > 0).float()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        for inputs, targets in step:
            try:
                loss = checked_loss(model(inputs), targets)
            except ValueError:
                loss = model(inputs).square().mean() * 0.1
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

print("digest", job.digest())
