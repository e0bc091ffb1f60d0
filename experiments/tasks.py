"""Two small problems: handwritten digits with SGD, and a character transformer with SGD; both with a held-out part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
LENGTH = 32


@dataclass(frozen=True, slots=True)
class Task:
    """A model, its data and how it is trained."""

    name: str
    inputs: Tensor
    targets: Tensor
    held_out: tuple[Tensor, Tensor]
    build: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    reference: int
    """The batch that the learning rate was chosen for."""
    lr: float
    steps: int
    """Length of the schedule, in steps of the reference batch."""

    def validate(self, model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            value = float(self.loss(model(self.held_out[0]), self.held_out[1]))
        model.train()
        return value


class Characters(nn.Module):
    """One block of causal attention."""

    def __init__(self, symbols: int, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(LENGTH, width)
        self.norm, self.mix, self.join = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, symbols))

    def forward(self, text: Tensor) -> Tensor:
        x = self.symbols(text) + self.places.weight
        batch, length, width = x.shape
        parts = self.mix(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, width))
        return self.out(x + self.mlp(x))


def digits() -> Task:
    from sklearn.datasets import load_digits

    data = load_digits()
    images, targets = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, held_out = order[:1440], order[1440:]

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    return Task(
        "digits",
        images[train],
        targets[train],
        (images[held_out], targets[held_out]),
        build,
        F.cross_entropy,
        reference=16,
        lr=0.02,
        steps=720,
    )


def characters() -> Task:
    text = (ROOT / "LICENSE").read_bytes()
    symbols = sorted(set(text))
    codes = torch.tensor([symbols.index(byte) for byte in text])
    windows = codes.unfold(0, LENGTH + 1, 4)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    train, held_out = windows[order[256:]], windows[order[:256]]

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())

    return Task(
        "characters",
        train[:, :-1],
        train[:, 1:],
        (held_out[:, :-1], held_out[:, 1:]),
        lambda: Characters(len(symbols)),
        loss,
        reference=16,
        lr=0.1,
        steps=320,
    )


TASKS: dict[str, Callable[[], Task]] = {"digits": digits, "characters": characters}
