# equal
import csv

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=30)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

if job.chief:
    with open("train.csv", "a" if job.resumed else "w") as file:
        csv.writer(file).writerow(["step", "loss"])

for epoch in job.epochs(10):
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if job.chief:
            with open("train.csv", "a") as file:
                csv.writer(file).writerow([step.index, step.metrics["loss"]])
    if job.chief:
        torch.save(model.state_dict(), f"epoch-{epoch}.pt")

print("digest", job.digest())
