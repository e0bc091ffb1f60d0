"""The script of the stored runs: 16 samples per step, 4 steps per epoch. It runs under every version that wrote files."""

import sys
import time

import torch

import stretto

EPOCHS, PAUSE = int(sys.argv[1]), float(sys.argv[2])
job = stretto.join(seed=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job.share(model=model, optimizer=optimizer)
generator = torch.Generator().manual_seed(7)
inputs = torch.randn(64, 4, generator=generator)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
data = job.loader(dataset, batch_size=16)
for _ in job.epochs(EPOCHS):
    for step in data:
        for x, y in step:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            step.log(loss=loss)
            time.sleep(PAUSE)
        optimizer.step()
        optimizer.zero_grad()
if job.chief:
    print("digest", job.digest())
