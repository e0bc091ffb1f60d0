"""Random legal training scripts: statements that touch shared state, at random places around the three loops of a script.

A program is a value: a seed makes one, `text()` writes it as a script, and what was found once is kept as a value in FOUND.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PLACES = ("before epochs", "before steps", "before slices", "in a slice", "after slices", "after steps", "after epochs")

HEAD = '''\
import copy, math, random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto


class Counter:
    """Counts, and is shared."""

    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Ema:
    """A moving average of a model's parameters."""

    def __init__(self, model):
        self.mean = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model, decay=0.9):
        for name, p in model.named_parameters():
            self.mean[name].mul_(decay).add_(p.detach(), alpha=1 - decay)

    def state_dict(self):
        return dict(self.mean)

    def load_state_dict(self, state):
        self.mean = {name: tensor.clone() for name, tensor in state.items()}


job = stretto.join(seed=5)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(64, 6, generator=generator)
targets = (inputs[:, 0] * inputs[:, 1] > 0).long() + 2 * (inputs[:, 2] > 0).long()
model = nn.Sequential(nn.Linear(6, 16), {NORM}nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.{OPTIMIZER}
'''

OPTIMIZERS = (
    "SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "AdamW(model.parameters(), lr=0.01)",
    "SGD(model.parameters(), lr=0.1)",
)
SCHEDULERS = (
    "torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)",
    "torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)",
    "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)",
    "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, 0.2 + 0.1 * n))",
)

EVALUATE = """\

def evaluate():
    model.eval()
    for step in val:
        for x, y in step:
            with torch.no_grad():
                step.log(loss=F.cross_entropy(model(x), y))
    model.train()
    return val.metrics["loss"]


"""


@dataclass(frozen=True)
class Statement:
    """Something that scripts do, and where they may do it."""

    text: str
    places: tuple[str, ...]
    shares: tuple[str, ...] = ()
    local: str = ""
    """What the script sets before the epochs, without sharing it."""


AROUND = ("before epochs", "before steps", "after steps", "after epochs")
ANYWHERE = ("before epochs", "before steps", "before slices", "after slices", "after steps", "after epochs")
LOOPS = ("before steps", "before slices", "after slices", "after steps")

STATEMENTS: dict[str, Statement] = {
    "scheduler": Statement("scheduler.step()", LOOPS, ("scheduler",)),
    "scheduler from the second epoch on": Statement("if epoch > 0: scheduler.step()", ("before steps",), ("scheduler",)),
    "scheduler every third step": Statement(
        "if job.step % 3 == 0: scheduler.step()", ("before slices", "after slices"), ("scheduler",)
    ),
    "ema": Statement("ema.update(model)", ANYWHERE, ("ema",)),
    "counter": Statement("counter.value += 1", ANYWHERE, ("counter",)),
    "counter decides the rate": Statement(
        "counter.value += 1\noptimizer.param_groups[0]['lr'] = 0.1 / (1 + counter.value % 3)", LOOPS, ("counter",)
    ),
    "job.state counts": Statement("job.state.seen = getattr(job.state, 'seen', 0) + 1", LOOPS),
    "shared dict counts": Statement("best['bad'] += 1", ANYWHERE, ("best",)),
    "shared dict keeps the best": Statement(
        "now = evaluate()\nif now < best['loss']: best['loss'] = now\nelse: best['bad'] += 1",
        ("before steps", "after steps"),
        ("best",),
    ),
    "evaluation": Statement("evaluate()", ANYWHERE),
    "evaluation every fifth step": Statement("if job.step % 5 == 2: evaluate()", ("before slices", "after slices")),
    "evaluation every second epoch": Statement("if epoch % 2: evaluate()", ("before steps", "after steps")),
    "evaluation sets the rate": Statement("optimizer.param_groups[0]['lr'] = 0.02 * evaluate()", ("before steps", "after steps")),
    "plateau": Statement("plateau.step(evaluate())", ("before steps", "after steps"), ("plateau",)),
    "chief saves": Statement("if job.chief: torch.save(model.state_dict(), 'model.pt')", ANYWHERE),
    "rate by epoch": Statement("optimizer.param_groups[0]['lr'] = 0.1 * 0.7 ** epoch", ("before steps",)),
    "rate halves": Statement("optimizer.param_groups[0]['lr'] *= 0.8", ("before steps", "after steps")),
    "clip": Statement("nn.utils.clip_grad_norm_(model.parameters(), 0.5)", ("after slices",)),
    "decay by hand": Statement("with torch.no_grad():\n    for p in model.parameters(): p.mul_(0.999)", ANYWHERE),
    "local counter steps the scheduler": Statement(
        "count += 1\nif count % 4 == 0: scheduler.step()", ("before slices", "after slices"), ("scheduler",), "count = 0"
    ),
    "local counter evaluates": Statement("count += 1\nif count % 5 == 0: evaluate()", ("after slices",), (), "count = 0"),
    "local early stopping": Statement(
        "now = evaluate()\nlosses.append(now)\nif len(losses) > 2: break", ("after steps",), (), "losses = []"
    ),
    "local loss": Statement("if 'loss' in step.metrics: total += step.metrics['loss']", ("after slices",), (), "total = 0.0"),
    "draw in a slice": Statement("x = x + 0.01 * torch.randn_like(x)", ("in a slice",)),
    "numpy draw in a slice": Statement("x = x * float(np.random.uniform(0.9, 1.1))", ("in a slice",)),
    "draw for a step": Statement("strength = 0.1 * random.random()", ("before slices",), (), "strength = 0.1"),
    "draw for an epoch": Statement("strength = 0.1 * random.random()", ("before steps",), (), "strength = 0.1"),
    "draw after a step": Statement("strength = 0.1 * float(torch.rand(()))", ("after slices",), (), "strength = 0.1"),
    "dropout by epoch": Statement("model[-2].p = 0.1 * (epoch % 3)", ("before steps",)),
    "dropout once": Statement("if epoch == 1: model[-2].p = 0.4", ("before steps", "after steps")),
    "freeze by epoch": Statement("model[0].weight.requires_grad_(epoch != 1)", ("before steps",)),
    "freeze once": Statement("if epoch == 1: model[0].weight.requires_grad_(False)", ("before steps", "after steps")),
    "print": Statement("print(job.step, optimizer.param_groups[0]['lr'], flush=True)", ANYWHERE),
    "break": Statement("if step.index % 7 == 5: break", ("after slices",)),
}
SHARED = {
    "scheduler": "scheduler = {SCHEDULER}",
    "plateau": "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)",
    "ema": "ema = Ema(model)",
    "counter": "counter = Counter()",
    "best": "best = {'loss': math.inf, 'bad': 0}",
}
ACCUMULATIONS = {
    "none": "",
    "step.index": "if (step.index + 1) % 3 == 0:",
    "job.step": "if (job.step + 1) % 2 == 0:",
    "enumerate": "if (i + 1) % 3 == 0:",
    "counter": "micro += 1\nif micro % 3 == 0:",
}


@dataclass(frozen=True)
class Program:
    """A script, by what it does where."""

    statements: tuple[tuple[str, str], ...]
    """Places and names of statements, in their order."""
    accumulation: str = "none"
    zero_grad: str = "after the step"
    """`after the step`, `top`, or `model` (`model.zero_grad()` after the step)."""
    epochs: str = "job.epochs"
    optimizer: int = 0
    scheduler: int = 0
    norm: bool = False
    tail: str = "drop"

    def text(self) -> str:
        """The script."""
        used = [STATEMENTS[name] for _, name in self.statements]
        shares = list(dict.fromkeys(name for statement in used for name in statement.shares))
        norm = "nn.BatchNorm1d(16), " if self.norm else ""
        lines = [HEAD.replace("{NORM}", norm).replace("{OPTIMIZER}", OPTIMIZERS[self.optimizer])]
        lines += [SHARED[name].replace("{SCHEDULER}", SCHEDULERS[self.scheduler]) for name in shares]
        lines += [f"job.share({', '.join(f'{name}={name}' for name in ['model', 'optimizer', *shares])})"]
        dataset = "TensorDataset(inputs, targets)" if self.tail == "drop" else "TensorDataset(inputs[:60], targets[:60])"
        lines += [f"data = job.loader({dataset}, batch_size=8, slices=4, tail={self.tail!r})"]
        if any("evaluate" in statement.text for statement in used):
            lines += ["val = job.loader(TensorDataset(inputs[:24], targets[:24]), batch_size=8, slices=4, train=False)"]
            lines += [EVALUATE]
        lines += dict.fromkeys([*(statement.local for statement in used if statement.local), "strength = 0.1"])
        lines += [*(["micro = 0"] if self.accumulation == "counter" else []), *self._at("before epochs", 0)]
        lines += [f"for epoch in {self.epochs}(4):", "    model.train()", *self._at("before steps", 1)]
        lines += ["    for i, step in enumerate(data):" if self.accumulation == "enumerate" else "    for step in data:"]
        lines += ["        optimizer.zero_grad()"] if self.zero_grad == "top" else []
        lines += [*self._at("before slices", 2), "        for x, y in step:", *self._at("in a slice", 3)]
        lines += [
            "            loss = F.cross_entropy(model(x), y, label_smoothing=strength)",
            "            loss.backward()",
            "            step.log(loss=loss)",
        ]
        lines += [*self._at("after slices", 2), *self._stepping(), *self._at("after steps", 1), *self._at("after epochs", 0)]
        return "\n".join([*lines, 'print("digest", job.digest())', ""])

    def _stepping(self) -> list[str]:
        zero = {"after the step": ["optimizer.zero_grad()"], "model": ["model.zero_grad()"], "top": []}[self.zero_grad]
        step = ["optimizer.step()", *zero]
        condition = ACCUMULATIONS[self.accumulation].splitlines()
        return [f"        {line}" for line in (step if not condition else [*condition, *(f"    {line}" for line in step)])]

    def _at(self, place: str, depth: int) -> list[str]:
        return [
            f"{'    ' * depth}{line}" for at, name in self.statements if at == place for line in STATEMENTS[name].text.splitlines()
        ]


def program(seed: int) -> Program:
    """The seed's program."""
    chance = random.Random(seed)
    names = chance.sample(sorted(STATEMENTS), chance.randint(1, 5))
    placed = [(chance.choice(STATEMENTS[name].places), name) for name in names]
    accumulation = chance.choices(list(ACCUMULATIONS), [8, 2, 2, 2, 1])[0]
    zero_grad = chance.choice(["after the step", "top", "model"])
    epochs = chance.choices(["job.epochs", "range"], [5, 1])[0]
    optimizer, scheduler = chance.randrange(len(OPTIMIZERS)), chance.randrange(len(SCHEDULERS))
    norm, tail = chance.random() < 0.3, chance.choice(["drop", "drop", "keep"])
    return Program(
        tuple(sorted(placed, key=lambda one: PLACES.index(one[0]))),
        accumulation,
        "after the step" if accumulation != "none" and zero_grad == "top" else zero_grad,
        epochs,
        optimizer,
        scheduler,
        norm and tail == "drop",
        tail,  # the slices of a short last batch have one sample, too few for normalisation
    )
