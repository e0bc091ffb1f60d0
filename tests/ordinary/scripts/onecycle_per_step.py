# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

EPOCHS = 10
job = stretto.join(seed=2)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = job.loader(TensorDataset(x, y), batch_size=16)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, epochs=EPOCHS, steps_per_epoch=len(data))
job.share(model=model, optimizer=optimizer, scheduler=scheduler)

for epoch in job.epochs(EPOCHS):
    for step in data:
        for inputs, targets in step:
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

print("digest", job.digest())
