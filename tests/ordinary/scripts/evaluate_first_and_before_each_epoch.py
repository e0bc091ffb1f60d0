# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=20)
x = torch.randn(112, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x[:64], y[:64]), batch_size=16)
val = job.loader(TensorDataset(x[64:], y[64:]), batch_size=16, train=False)


def evaluate():
    model.eval()
    for step in val:
        for inputs, targets in step:
            with torch.no_grad():
                step.log(accuracy=(model(inputs).argmax(1) == targets).float().mean())
    model.train()
    return val.metrics["accuracy"]


print("before training:", evaluate())
for epoch in job.epochs(8):
    print(f"epoch {epoch} begins with", evaluate())
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

print("in the end:", evaluate())
print("digest", job.digest())
