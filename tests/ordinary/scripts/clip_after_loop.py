# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=55)
x = torch.randn(64, 6, 8, generator=torch.Generator().manual_seed(1))
y = x.sum((1, 2), keepdim=False).unsqueeze(1)
rnn = nn.GRU(8, 16, batch_first=True)
head = nn.Linear(16, 1)
model = nn.ModuleList([rnn, head])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(8):
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            outputs, _ = rnn(inputs)
            loss = F.mse_loss(head(outputs[:, -1]), targets)
            loss.backward()
            step.log(loss=loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        if job.chief:
            print(job.step, float(norm))

print("digest", job.digest())
