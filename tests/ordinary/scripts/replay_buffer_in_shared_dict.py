# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=73)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = {"losses": [], "mean": 0.0}
job.share(model=model, optimizer=optimizer, history=history)
data = job.loader(TensorDataset(x, y), batch_size=16)

for epoch in job.epochs(10):
    history["losses"] = history["losses"][-5:]
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        history["losses"].append(step.metrics["loss"])
        history["mean"] = sum(history["losses"]) / len(history["losses"])
        if step.metrics["loss"] <= 1.2 * history["mean"]:  # leaves steps with a spike out
            optimizer.step()

print("digest", job.digest())
