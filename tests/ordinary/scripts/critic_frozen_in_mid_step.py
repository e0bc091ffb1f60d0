# equal
import torch
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=88)
x = torch.randn(64, 2, generator=torch.Generator().manual_seed(1)) + 2
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
opt_D, opt_G = torch.optim.SGD(D.parameters(), lr=0.05), torch.optim.SGD(G.parameters(), lr=0.05)
job.share(D=D, G=G, opt_D=opt_D, opt_G=opt_G)
data = job.loader(TensorDataset(x), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        D.requires_grad_(True)
        opt_D.zero_grad()
        for (real,) in step:
            loss = D(G(torch.randn(len(real), 4)).detach()).relu().mean() - D(real).mean()
            loss.backward()
            step.log(loss_d=loss)
        opt_D.step()
        D.requires_grad_(False)
        opt_G.zero_grad()
        for (real,) in step:
            loss = -D(G(torch.randn(len(real), 4))).mean()
            loss.backward()
            step.log(loss_g=loss)
        opt_G.step()

print("digest", job.digest())
