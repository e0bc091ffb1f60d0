# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import stretto


class Noisy(Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.noise = x, y, 0.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.noise * torch.randn(self.x.shape[1]), self.y[index]


job = stretto.join(seed=39)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
dataset = Noisy(x, y)
data = job.loader(dataset, batch_size=16)

for epoch in job.epochs(10):
    dataset.noise = 0.05 * epoch
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

print("digest", job.digest())
