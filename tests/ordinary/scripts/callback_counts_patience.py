# refused when scaled: callbacks[1].
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class History:
    def __init__(self):
        self.losses = []

    def on_epoch_end(self, trainer, loss):
        self.losses.append(loss)


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.wait, self.best = patience, 0, float("inf")

    def on_epoch_end(self, trainer, loss):
        if loss < self.best - 0.02:
            self.best, self.wait = loss, 0
        else:
            self.wait += 1
            if self.wait >= self.patience:
                trainer.should_stop = True


class Trainer:
    def __init__(self, job, model, optimizer, callbacks):
        self.job, self.model, self.optimizer, self.callbacks = job, model, optimizer, callbacks
        self.should_stop = False
        job.share(model=model, optimizer=optimizer)

    def fit(self, data, val, epochs):
        for _ in self.job.epochs(epochs):
            self.model.train()
            for step in data:
                self.training_step(step)
            loss = self.validate(val)
            for callback in self.callbacks:
                callback.on_epoch_end(self, loss)
            if self.should_stop:
                break

    def training_step(self, step):
        self.optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(self.model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        self.optimizer.step()

    @torch.no_grad()
    def validate(self, val):
        self.model.eval()
        for step in val:
            for inputs, targets in step:
                step.log(loss=F.cross_entropy(self.model(inputs), targets))
        return val.metrics["loss"]


def main():
    job = stretto.join(seed=3)
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.02), [History(), EarlyStopping(6)])
    data = job.loader(TensorDataset(x[:64], y[:64]), batch_size=16)
    trainer.fit(data, job.loader(TensorDataset(x[64:], y[64:]), batch_size=32, train=False), 12)
    print("digest", job.digest())


if __name__ == "__main__":
    main()
