# refused alone: `bank` was written to inside the loop over the slices
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=84)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
bank = F.normalize(torch.randn(64, 4), dim=1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, torch.arange(64)), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for inputs, index in step:
            features = F.normalize(model(inputs), dim=1)
            loss = F.cross_entropy(features @ bank.T / 0.2, index)
            loss.backward()
            bank[index] = F.normalize(0.5 * bank[index] + 0.5 * features.detach(), dim=1)
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
