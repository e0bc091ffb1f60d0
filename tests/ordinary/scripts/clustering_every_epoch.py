# refused when scaled: dataset.labels
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import stretto

job = stretto.join(seed=83)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))


class Clustered(Dataset):
    def __init__(self):
        self.labels = torch.zeros(64, dtype=torch.long)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return x[index], self.labels[index]


dataset = Clustered()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
job.share(model=model, optimizer=optimizer)
data = job.loader(dataset, batch_size=16)

for epoch in job.epochs(10):
    with torch.no_grad():
        features = model[:2](x)
        centres = features[torch.randperm(64)[:4]]
        dataset.labels = torch.cdist(features, centres).argmin(1)
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
