# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=9)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
swa_model = AveragedModel(model)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
job.share(model=model, optimizer=optimizer, scheduler=scheduler, swa_model=swa_model, swa_scheduler=swa_scheduler)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
    if epoch >= 6:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()

print("digest", job.digest())
