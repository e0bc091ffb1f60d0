# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class Tiny(nn.Module):
    def __init__(self, words=20, width=16):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)).relu())


job = stretto.join(seed=41)
g = torch.Generator().manual_seed(1)
tokens = torch.randint(0, 20, (64, 9), generator=g)
model = Tiny()
decay = [p for p in model.parameters() if p.ndim >= 2]
rest = [p for p in model.parameters() if p.ndim < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.01)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad(set_to_none=True)
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
