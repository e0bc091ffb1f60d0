# refused when scaled: self.register_buffer("queue", …)
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
        self.queue = F.normalize(torch.randn(32, 4), dim=1)

    def forward(self, one, other):
        query, key = F.normalize(self.net(one), dim=1), F.normalize(self.net(other), dim=1).detach()
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.T], dim=1)
        return F.cross_entropy(logits / 0.2, torch.zeros(len(one), dtype=torch.long)), key


job = stretto.join(seed=87)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
model = Contrast()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for (inputs,) in step:
            loss, keys = model(inputs + 0.1 * torch.randn_like(inputs), inputs)
            loss.backward()
            step.log(loss=loss)
            step.gather(keys=keys)
        optimizer.step()
        model.queue = torch.cat([model.queue[16:], step.gathered["keys"]])

print("digest", job.digest())
