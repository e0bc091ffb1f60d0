# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=23)
x = torch.randn(114, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = {"correct": 0}
job.share(model=model, optimizer=optimizer, history=history)
data = job.loader(TensorDataset(x[:64], y[:64]), batch_size=16)
val = job.loader(TensorDataset(x[64:], y[64:]), batch_size=16, train=False)

for epoch in job.epochs(10):
    for step in data:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    for step in val:
        for inputs, targets in step:
            with torch.no_grad():
                step.sum(correct=(model(inputs).argmax(1) == targets).sum(), total=len(targets))
    history["correct"] += int(val.sums["correct"])
    assert val.sums["total"] == 50
    if job.chief:
        print(f"epoch {epoch}: {val.sums['correct']}/{val.sums['total']}")

print("digest", job.digest())
