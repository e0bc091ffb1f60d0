# refused when scaled: job.state.global_step
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=82)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
encoder, decoder = nn.Linear(8, 6), nn.Linear(3, 8)
model = nn.ModuleList([encoder, decoder])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x), batch_size=16)

global_step = 0
for epoch in job.epochs(10):
    for step in data:
        beta = min(1.0, global_step / 20)
        optimizer.zero_grad()
        for (inputs,) in step:
            mean, logvar = encoder(inputs).chunk(2, dim=1)
            latent = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
            divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(dim=1).mean()
            loss = F.mse_loss(decoder(latent), inputs) + beta * divergence
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        global_step += 1

print("digest", job.digest())
