# equal
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

EPOCHS = 8


def adjust_learning_rate(optimizer, epoch):
    rate = 0.05 * 0.5 * (1 + math.cos(math.pi * epoch / EPOCHS))
    for group in optimizer.param_groups:
        group["lr"] = rate


job = stretto.join(seed=5)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(EPOCHS):
    adjust_learning_rate(optimizer, epoch)
    for step in data:
        for inputs, targets in step:
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

print("digest", job.digest())
