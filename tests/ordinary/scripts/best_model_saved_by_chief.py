# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=12)
x = torch.randn(112, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
best = {"accuracy": 0.0}
job.share(model=model, optimizer=optimizer, best=best)
data = job.loader(TensorDataset(x[:64], y[:64]), batch_size=16)
val = job.loader(TensorDataset(x[64:], y[64:]), batch_size=16, train=False)

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
                step.log(accuracy=(model(inputs).argmax(1) == targets).float().mean())
    if val.metrics["accuracy"] > best["accuracy"]:
        best["accuracy"] = val.metrics["accuracy"]
        if job.chief:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "best.pt")

print("digest", job.digest())
