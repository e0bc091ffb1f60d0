# equal
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class Trainer:
    def __init__(self, job, model, optimizer, train, val):
        self.job, self.model, self.optimizer, self.train_data, self.val_data = job, model, optimizer, train, val
        self.history = []

    def fit(self, epochs):
        for epoch in self.job.epochs(epochs):
            self.on_epoch_start(epoch)
            for step in self.train_data:
                self.training_step(step)
            self.on_epoch_end(epoch)

    def on_epoch_start(self, epoch):
        self.model.train()

    def training_step(self, step):
        self.optimizer.zero_grad()
        for batch in step:
            loss = self.loss(batch)
            loss.backward()
            step.log(loss=loss)
        self.optimizer.step()

    def on_epoch_end(self, epoch):
        self.model.eval()
        with torch.no_grad():
            for step in self.val_data:
                for batch in step:
                    step.log(loss=self.loss(batch))
        self.history.append(self.val_data.metrics["loss"])
        if self.job.chief:
            print(epoch, self.history[-1])

    def loss(self, batch):
        inputs, targets = batch
        return F.cross_entropy(self.model(inputs), targets)


def main():
    job = stretto.join(seed=28)
    x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    job.share(model=model, optimizer=optimizer)
    train = job.loader(TensorDataset(x[:64], y[:64]), batch_size=16)
    val = job.loader(TensorDataset(x[64:], y[64:]), batch_size=16, train=False)
    Trainer(job, model, optimizer, train, val).fit(8)
    print("digest", job.digest())


if __name__ == "__main__":
    main()
