# refused when scaled: model.drop.p
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 32)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        return self.out(self.drop(self.hidden(x).relu()))


job = stretto.join(seed=37)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    if epoch == 1:
        model.drop.p = 0.1
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

print("digest", job.digest())
