# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=36)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 2)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    if epoch == 3 and len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": backbone.parameters(), "lr": 0.01})
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        model.zero_grad()

print("digest", job.digest())
