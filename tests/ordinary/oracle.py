"""What a program means in PyTorch itself: `stretto` for one process in a few lines, without any of its machinery.

A pass adds to `p.grad` the mean of the slices' gradients, whatever was in it before; nothing else happens to gradients. The order
of samples and the random numbers of slices are the library's own, so that losses can be compared; the order in which gradients are
summed is not, so they are compared to a few digits. Enough for the programs of `programs.py`, without batch normalisation.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from stretto.train.data.sample_reader import SliceRequest, Source, cut
from stretto.train.rng import seed_all


class OracleStep:
    def __init__(self, loader: OracleLoader, *, index: int, epoch: int, first: int, count: int) -> None:
        self.loader, self.index, self.epoch, self.first, self.count = loader, index, epoch, first, count
        self.metrics: dict[str, float] = {}
        self._weight = 0.0

    def log(self, **values: Any) -> None:
        for name, value in values.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(torch.as_tensor(value).detach()) * self._weight

    def __iter__(self) -> Iterator[Any]:
        loader, job = self.loader, self.loader.job
        parameters = [p for p in job.model.parameters() if p.requires_grad]
        before = [None if p.grad is None else p.grad.clone() for p in parameters]
        sums: list[Any] = [None] * len(parameters)
        for slice in range(loader.slices):
            low, high = cut(self.first, self.count, loader.slices, slice)
            self._weight = (high - low) / self.count
            for p in parameters:
                p.grad = None
            data = loader.source[SliceRequest(self.epoch, self.first, slice, low, high)]
            if loader.train:
                seed_all(job.seed, self.index, 0, slice)
            yield data
            for place, p in enumerate(parameters):
                if p.grad is not None:
                    part = p.grad * self._weight
                    sums[place] = part if sums[place] is None else sums[place] + part
        for p, held, added in zip(parameters, before, sums, strict=True):
            p.grad = held if added is None else added if held is None else held + added


class OracleLoader:
    def __init__(self, job: OracleJob, dataset: Any, *, batch_size: int, slices: int, train: bool, tail: str) -> None:
        self.job, self.batch, self.slices, self.train, self.tail = job, batch_size, slices, train, tail
        self.number = job.loaders
        self.source = Source(dataset, seed=job.seed, shuffle=train, collate=None)
        self.epoch = 0
        self.metrics: dict[str, float] = {}

    def __iter__(self) -> Iterator[OracleStep]:
        totals: dict[str, float] = {}
        whole = len(range(0, self.source.size, self.batch)) if self.tail == "keep" else self.source.size // self.batch
        epoch, self.epoch = self.epoch, self.epoch + 1
        for place in range(whole):
            first = place * self.batch
            count = min(self.batch, self.source.size - first)
            step = OracleStep(self, index=self.job.step if self.train else place, epoch=epoch, first=first, count=count)
            try:
                yield step
            finally:
                if self.train:
                    self.job.committed(step)
            for name, value in step.metrics.items():
                totals[name] = totals.get(name, 0.0) + value * count / self.source.size
        self.metrics = totals


class OracleJob:
    def __init__(self, seed: int, trace: str) -> None:
        self.seed, self.step, self.loaders, self.chief = seed, 0, 0, True
        self.state = types.SimpleNamespace()
        self.model = torch.nn.Module()
        self._trace = open(trace, "w", buffering=1)  # noqa: SIM115

    def share(self, *, model: torch.nn.Module, **_: Any) -> None:
        self.model = model

    def loader(self, dataset: Any, *, batch_size: int, slices: int, train: bool = True, tail: str = "keep") -> OracleLoader:
        made = OracleLoader(self, dataset, batch_size=batch_size, slices=slices, train=train, tail=tail)
        self.loaders += 1
        return made

    def epochs(self, count: int) -> Iterator[int]:
        yield from range(count)

    def committed(self, step: OracleStep) -> None:
        said = {"step": step.index, "epoch": step.epoch, "loader": step.loader.number, "first": step.first, "count": step.count}
        self._trace.write(json.dumps({**said, "metrics": step.metrics}) + "\n")
        self.step += 1

    def digest(self) -> str:
        return "oracle"


def install(trace: str) -> None:
    """`import stretto` gives the oracle in this process from now on."""
    module = types.ModuleType("stretto")

    def join(seed: int = 0) -> OracleJob:
        torch.set_num_threads(1)
        seed_all(seed)
        return OracleJob(seed, trace)

    module.join = join  # type: ignore[attr-defined]
    sys.modules["stretto"] = module
