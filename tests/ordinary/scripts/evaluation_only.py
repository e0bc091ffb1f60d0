# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

job = stretto.join(seed=67)
x = torch.randn(400, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
job.share(model=model)
test = job.loader(TensorDataset(x, y), batch_size=16, train=False)

model.eval()
for step in test:
    for inputs, targets in step:
        with torch.no_grad():
            outputs = model(inputs)
            step.log(loss=F.cross_entropy(outputs, targets), accuracy=(outputs.argmax(1) == targets).float().mean())
if job.chief:
    print(test.metrics)
print("digest", job.digest())
