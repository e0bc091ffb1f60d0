# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import stretto


class Jittered(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(8), self.y[index]


def main():
    job = stretto.join(seed=69)
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.share(model=model, optimizer=optimizer)
    data = job.loader(Jittered(x, y), batch_size=16, num_workers=1)
    for epoch in job.epochs(10):
        for step in data:
            for inputs, targets in step:
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    print("digest", job.digest())


if __name__ == "__main__":
    main()
