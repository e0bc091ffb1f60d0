# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset, random_split

import stretto

job = stretto.join(seed=19)
x = torch.randn(160, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] + x[:, 1] > 0).long()
trainset, valset, testset = random_split(TensorDataset(x, y), [96, 32, 32], generator=torch.Generator().manual_seed(2))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
train = job.loader(trainset, batch_size=16)
val = job.loader(valset, batch_size=32, train=False)
test = job.loader(testset, batch_size=32, train=False)


def evaluate(loader):
    model.eval()
    with torch.no_grad():
        for step in loader:
            for inputs, targets in step:
                outputs = model(inputs)
                step.log(loss=F.cross_entropy(outputs, targets), accuracy=(outputs.argmax(1) == targets).float().mean())
    return loader.metrics


for epoch in job.epochs(6):
    model.train()
    for step in train:
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    metrics = evaluate(val)
    if job.chief:
        print(f"epoch {epoch}: {metrics}")

metrics = evaluate(test)
if job.chief:
    print(f"test: {metrics}")
print("digest", job.digest())
