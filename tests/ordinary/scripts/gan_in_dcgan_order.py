# equal
import torch
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=51)
real_data = torch.randn(64, 2, generator=torch.Generator().manual_seed(1)) * 0.5 + 2
netD = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
netG = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
job.share(netD=netD, netG=netG, optimizerD=optimizerD, optimizerG=optimizerG)
data = job.loader(TensorDataset(real_data), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        # (1) D: maximise log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        for (real,) in step:
            errD_real = criterion(netD(real), torch.ones(len(real), 1))
            errD_real.backward()
            fake = netG(torch.randn(len(real), 4))
            errD_fake = criterion(netD(fake.detach()), torch.zeros(len(real), 1))
            errD_fake.backward()
            step.log(loss_d=errD_real + errD_fake)
        optimizerD.step()
        # (2) G: maximise log(D(G(z)))
        netG.zero_grad()
        for (real,) in step:
            fake = netG(torch.randn(len(real), 4))
            errG = criterion(netD(fake), torch.ones(len(real), 1))
            errG.backward()
            step.log(loss_g=errG)
        optimizerG.step()

print("digest", job.digest())
