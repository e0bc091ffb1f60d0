# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=4)
x = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
job.share(model=model, optimizer=optimizer, scheduler=scheduler)
data = job.loader(TensorDataset(x[:80], y[:80]), batch_size=16)
val = job.loader(TensorDataset(x[80:], y[80:]), batch_size=24, train=False)

for epoch in job.epochs(8):
    model.train()
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    for step in val:
        for inputs, targets in step:
            with torch.no_grad():
                step.log(loss=F.cross_entropy(model(inputs), targets))
    scheduler.step(val.metrics["loss"])
    if job.chief:
        print(epoch, val.metrics["loss"], optimizer.param_groups[0]["lr"])

print("digest", job.digest())
