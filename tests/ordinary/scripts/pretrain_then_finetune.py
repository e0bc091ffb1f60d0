# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=68)
g = torch.Generator().manual_seed(1)
corpus = TensorDataset(torch.randn(64, 8, generator=g))
x = torch.randn(48, 8, generator=g)
task = TensorDataset(x, (x.sum(1) > 0).long())
encoder, decoder, head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(16, 2)
pretraining = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
finetuning = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05)
job.share(encoder=encoder, decoder=decoder, head=head, pretraining=pretraining, finetuning=finetuning)
unlabelled = job.loader(corpus, batch_size=16)
labelled = job.loader(task, batch_size=16)

for epoch in range(5):
    for step in unlabelled:
        pretraining.zero_grad()
        for (inputs,) in step:
            loss = F.mse_loss(decoder(encoder(inputs).relu()), inputs)
            loss.backward()
            step.log(loss=loss)
        pretraining.step()

for epoch in range(6):
    for step in labelled:
        finetuning.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(head(encoder(inputs).relu()), targets)
            loss.backward()
            step.log(loss=loss)
        finetuning.step()

print("digest", job.digest())
