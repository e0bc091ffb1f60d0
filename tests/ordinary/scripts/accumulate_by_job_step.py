# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=14)
x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=8)

for epoch in job.epochs(4):
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            (loss / 4).backward()
            step.log(loss=loss)
        if job.step % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

print("digest", job.digest())
