# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=46)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)


def loss_of(weights, inputs, targets):
    return F.cross_entropy(functional_call(model, weights, (inputs,)), targets)


for epoch in job.epochs(10):
    for step in data:
        for inputs, targets in step:
            weights = dict(model.named_parameters())
            loss = loss_of(weights, inputs, targets)
            loss.backward()
            with torch.no_grad():
                slopes = grad(loss_of)({name: w.detach() for name, w in weights.items()}, inputs, targets)
            step.log(loss=loss, slope=sum(s.norm() for s in slopes.values()))
        optimizer.step()
        optimizer.zero_grad()

print("digest", job.digest())
