# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=53)
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
        for inputs, targets in step:
            loss = F.cross_entropy(head(body(inputs)), targets)
            loss.backward()
            step.log(loss=loss)
        head_optimizer.step()
        head_optimizer.zero_grad()
        if job.step % 3 == 2:  # the body learns from three steps at once
            body_optimizer.step()
            body_optimizer.zero_grad()

print("digest", job.digest())
