# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        with torch.no_grad():
            for name, p in model.named_parameters():
                self.shadow[name].lerp_(p, 1 - self.decay)

    def state_dict(self):
        return {"shadow": self.shadow}

    def load_state_dict(self, state):
        self.shadow = {name: value.clone() for name, value in state["shadow"].items()}


job = stretto.join(seed=7)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
ema = EMA(model, 0.95)
job.share(model=model, optimizer=optimizer, ema=ema)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(8):
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model)

print("digest", job.digest())
