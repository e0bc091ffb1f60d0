# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=86)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
critic = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), nn.Softplus(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
job.share(critic=critic, optimizer=optimizer)
data = job.loader(TensorDataset(x), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad(set_to_none=False)
        for (real,) in step:
            real.requires_grad_(True)
            score = critic(real)
            loss = F.relu(1 - score).mean() + F.relu(1 + critic(torch.randn_like(real))).mean()
            if step.index % 4 == 0:
                (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
                penalty = slope.square().sum(1).mean()
                loss = loss + 5 * penalty
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
