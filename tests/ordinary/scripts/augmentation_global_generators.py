# equal
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import stretto


class Augmented(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        sample = self.x[index].clone()
        if random.random() < 0.5:
            sample = sample.flip(0)
        sample *= float(np.random.uniform(0.8, 1.2))
        return sample + 0.1 * torch.randn(8), self.y[index]


job = stretto.join(seed=48)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(Augmented(x, y), batch_size=16)

for epoch in job.epochs(10):
    for step in data:
        for inputs, targets in step:
            if random.random() < 0.3:  # mixup for some slices
                inputs = 0.7 * inputs + 0.3 * inputs[torch.randperm(len(inputs))]
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

print("digest", job.digest())
