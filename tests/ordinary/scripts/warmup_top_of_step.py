# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=3)
x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 20))
job.share(model=model, optimizer=optimizer, warmup=warmup)
data = job.loader(TensorDataset(x, y), batch_size=12, slices=4)

for epoch in job.epochs(5):
    for step in data:
        if job.step > 0:
            warmup.step()
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
