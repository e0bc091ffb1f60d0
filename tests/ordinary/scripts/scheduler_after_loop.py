# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=1)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
job.share(model=model, optimizer=optimizer, scheduler=scheduler)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(8):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
    scheduler.step()
    if job.chief:
        print(f"epoch {epoch}: loss {step.metrics['loss']:.4f}, next rate {scheduler.get_last_lr()[0]:.5f}")

print("digest", job.digest())
