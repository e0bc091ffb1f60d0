# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=22)
x = torch.randn(112, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
data = job.loader(TensorDataset(x[:64], y[:64]), batch_size=16)
val = job.loader(TensorDataset(x[64:], y[64:]), batch_size=16, train=False)

for epoch in job.epochs(10):
    if epoch % 2 == 0:
        model.eval()
        correct = total = 0  # of this worker only: printed, not used
        for step in val:
            for inputs, targets in step:
                with torch.no_grad():
                    correct += (model(inputs).argmax(1) == targets).sum().item()
                total += len(targets)
        print(f"worker saw {correct}/{total}")
        model.train()
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

print("digest", job.digest())
