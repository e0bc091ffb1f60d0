# refused when scaled: job.share(target=target)
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=81)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
online = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
predictor = nn.Linear(8, 8)
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.2)
job.share(online=online, predictor=predictor, optimizer=optimizer)
data = job.loader(TensorDataset(x), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for (inputs,) in step:
            one, other = inputs + 0.1 * torch.randn_like(inputs), inputs + 0.1 * torch.randn_like(inputs)
            loss = 2 - 2 * F.cosine_similarity(predictor(online(one)), target(other)).mean()
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

print("digest", job.digest())
