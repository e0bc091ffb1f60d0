# equal
import torch
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=31)
real = torch.randn(64, 4, generator=torch.Generator().manual_seed(1)) + 2
critic = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
job.share(critic=critic, optimizer=optimizer)
data = job.loader(TensorDataset(real), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for (good,) in step:
            fake = torch.randn_like(good)
            mix = torch.rand(len(good), 1)
            between = (mix * good + (1 - mix) * fake).requires_grad_(True)
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            loss = critic(fake).mean() - critic(good).mean() + 10 * penalty
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
