# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=25)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)
x[5] = float("nan")
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.mse_loss(model(inputs), targets)
            if not torch.isfinite(loss):
                continue
            loss.backward()
            step.log(loss=loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        if not torch.isfinite(norm):
            continue
        optimizer.step()

print("digest", job.digest())
