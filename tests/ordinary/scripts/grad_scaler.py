# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=40)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
job.share(model=model, optimizer=optimizer, scaler=scaler)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()
            step.log(loss=loss)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

print("digest", job.digest())
