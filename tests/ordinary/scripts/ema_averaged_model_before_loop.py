# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=8)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
job.share(model=model, optimizer=optimizer, ema=ema)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(8):
    ema.update_parameters(model)
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

print("digest", job.digest())
