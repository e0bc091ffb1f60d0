# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=62)
x = torch.rand(60, 16, generator=torch.Generator().manual_seed(1))
encoder, decoder = nn.Linear(16, 8), nn.Linear(4, 16)
model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x), batch_size=16, tail="keep", reduction="sum")

for epoch in job.epochs(8):
    for step in data:
        optimizer.zero_grad()
        for (inputs,) in step:
            mean, logvar = encoder(inputs).chunk(2, dim=1)
            code = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
            reconstruction = F.binary_cross_entropy_with_logits(decoder(code), inputs, reduction="sum")
            divergence = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
            loss = reconstruction + divergence
            loss.backward()
            step.log(loss=loss / len(inputs))
        optimizer.step()

print("digest", job.digest())
