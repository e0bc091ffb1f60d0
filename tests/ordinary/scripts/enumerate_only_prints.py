# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=16)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=8)

for epoch in job.epochs(5):
    running = 0.0
    for i, step in enumerate(data):
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        running += step.metrics["loss"]
        if i % 3 == 2 and job.chief:
            print(f"[{epoch + 1}, {i + 1:3d}] loss: {running / 3:.3f}")
            running = 0.0

print("digest", job.digest())
