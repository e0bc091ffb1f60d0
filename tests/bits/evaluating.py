"""Trains a little and evaluates with everything that counts: means, sums, lists, torchmetrics. Each worker writes what it found.

Arguments: the folder for what was found, whether an epoch's evaluation comes `before` or `after` its training, and
`worker:epoch:step` for those who are to die there once, in the middle of an evaluation (`hang:` before it: to hang).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torchmetrics
import torchmetrics.classification as tc

import stretto

FOLDER, PLACE, DEATHS, CLASSES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:], 3
WORKER = os.environ.get("STRETTO_WORKER", "alone")

job = stretto.join(seed=5)
generator = torch.Generator().manual_seed(2)
inputs = torch.randn(61, 6, generator=generator)
labels = (inputs[:, :CLASSES] + torch.randn(61, CLASSES, generator=generator)).argmax(1)
dataset = torch.utils.data.TensorDataset(inputs, labels)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, CLASSES)
        self.seen = torchmetrics.MeanMetric()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
metrics = torchmetrics.MetricCollection(
    {
        "accuracy": tc.MulticlassAccuracy(CLASSES),
        "f1": tc.MulticlassF1Score(CLASSES),
        "auroc": tc.MulticlassAUROC(CLASSES),
    }
)
losses = torchmetrics.CatMetric()
ever = torchmetrics.SumMetric()  # never reset: counts over all evaluations
trained = tc.MulticlassAccuracy(CLASSES)  # of the training steps
job.share(model=model, optimizer=optimizer, metrics=metrics, losses=losses, ever=ever, trained=trained)
train = job.loader(torch.utils.data.ConcatDataset([dataset] * 8), batch_size=16)
test = job.loader(dataset, batch_size=24, train=False)


def die(place: str) -> None:
    flag = FOLDER / f"died-{place.replace(':', '-')}"
    if flag.exists():
        return
    if place in DEATHS:
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if f"hang:{place}" in DEATHS:
        flag.touch()
        signal.pause()


def evaluate(epoch: int) -> dict[str, object]:
    model.eval()
    metrics.reset()
    losses.reset()
    local = 0
    with torch.no_grad():
        for step in test:
            for x, y in step:
                die(f"{WORKER}:{epoch}:{step.index}")
                logits = model(x)
                loss = torch.nn.functional.cross_entropy(logits, y, reduction="none")
                right = logits.argmax(1) == y
                local += int(right.sum())
                step.log(loss=loss.mean())
                step.sum(correct=right.sum(), total=len(y), loss=loss.sum(), confusion=confusion(logits, y))
                step.gather(logits=logits, labels=y, words=[str(int(label)) for label in y])
                metrics.update(logits, y)
                losses.update(loss)
                ever.update(loss)
                model.seen.update(loss)
    model.train()
    assert torch.equal(test.gathered["labels"], labels) and test.gathered["words"] == [str(int(y)) for y in labels]
    assert test.sums["total"] == len(dataset) and test.sums["correct"] == int((test.gathered["logits"].argmax(1) == labels).sum())
    return {
        "mean": test.metrics,
        "sums": {name: plain(value) for name, value in test.sums.items()},
        "logits": test.gathered["logits"].tolist(),
        "metrics": {k: v.item() for k, v in metrics.compute().items()},
        "losses": losses.compute().tolist(),
        "ever": ever.compute().item(),
        "seen": model.seen.compute().item(),
        "trained": trained.compute().item(),
        "local": local,
    }


def confusion(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.bincount(y * CLASSES + logits.argmax(1), minlength=CLASSES * CLASSES).view(CLASSES, CLASSES)


def plain(value: object) -> object:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def record(epoch: int) -> None:
    (FOLDER / f"{WORKER}-{epoch}.json").write_text(json.dumps(evaluate(epoch)))


def flags() -> list[Path]:
    return list(FOLDER.glob("died-*"))


team = 1
for epoch in job.epochs(4):
    if PLACE == "before":
        record(epoch)
    for step in train:
        for x, y in step:
            logits = model(x)
            loss = torch.nn.functional.cross_entropy(logits, y)
            loss.backward()
            step.log(loss=loss)
            step.sum(n=len(y))
            trained.update(logits, y)
        assert step.sums == {"n": 16}, step.sums
        optimizer.step()
        team = max(team, job.workers)
        optimizer.zero_grad()
        if flags() and job.workers < team:  # who has died comes back at a step's boundary
            time.sleep(0.5)
    if PLACE == "after":
        record(epoch)
print("digest", job.digest())
