# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=52)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 2)
body_optimizer = torch.optim.SGD(body.parameters(), lr=0.05)
head_optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
job.share(body=body, head=head, body_optimizer=body_optimizer, head_optimizer=head_optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer = body_optimizer if job.step % 2 else head_optimizer
        body_optimizer.zero_grad()
        head_optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(head(body(inputs)), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
