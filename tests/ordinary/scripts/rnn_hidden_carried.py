# refused alone: step
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=64)
x = torch.randn(64, 5, 8, generator=torch.Generator().manual_seed(1))
y = x.sum(2, keepdim=True)
rnn, head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 1)
model = nn.ModuleList([rnn, head])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    hidden = torch.zeros(1, 2, 16)
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            hidden = hidden.detach()
            outputs, hidden = rnn(inputs, hidden)
            loss = F.mse_loss(head(outputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
