# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=17)
g = torch.Generator().manual_seed(1)
labelled = TensorDataset(torch.randn(48, 8, generator=g), torch.randint(0, 2, (48,), generator=g))
unlabelled = TensorDataset(torch.randn(32, 8, generator=g))
encoder = nn.Linear(8, 16)
head = nn.Linear(16, 2)
decoder = nn.Linear(16, 8)
model = nn.ModuleDict({"encoder": encoder, "head": head, "decoder": decoder})
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
first = job.loader(labelled, batch_size=16)
second = job.loader(unlabelled, batch_size=16)

for epoch in job.epochs(8):
    for step in first:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(head(encoder(inputs).relu()), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
    for step in second:
        optimizer.zero_grad()
        for (inputs,) in step:
            loss = F.mse_loss(decoder(encoder(inputs).relu()), inputs)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
