# refused when scaled: counts the steps that this process draws with next(…)
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=3)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

batches = iter(data)
for iteration in range(30):
    try:
        step = next(batches)
    except StopIteration:
        batches = iter(data)
        step = next(batches)
    optimizer.zero_grad()
    for inputs, targets in step:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        step.log(loss=loss)
    optimizer.step()

print("digest", job.digest())
