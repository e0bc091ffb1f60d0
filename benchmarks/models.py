"""The models and data that benchmarks train: synthetic, and sized by their number of parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, an optimizer for it, its data and its loss."""

    build: Callable[[], nn.Module]
    optimize: Callable[[nn.Module], torch.optim.Optimizer]
    samples: Callable[[int], TensorDataset]
    loss: Callable[[Tensor, Tensor], Tensor]
    batch: int
    """The global batch, in 8 slices."""


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


class Characters(nn.Module):
    def __init__(self, *, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 8) for _ in range(layers)), nn.LayerNorm(width))
        self.out = nn.Linear(width, 256, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.blocks(self.characters(text) + self.places.weight[: text.shape[1]]))


def build_cnn() -> nn.Module:
    """10 million parameters, for images of 32 × 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    before = 64
    for width, depth in ((64, 1), (128, 1), (256, 3), (512, 1)):
        layers += [nn.Conv2d(before, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [Residual(width) for _ in range(depth)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def build_transformer() -> nn.Module:
    """25 million parameters, for texts of 64 characters."""
    return Characters(width=512, layers=8, length=64)


def build_small() -> nn.Module:
    """1 million parameters and steps of tens of milliseconds: pauses are measured on it."""
    return nn.Sequential(
        nn.Linear(64, 680), nn.ReLU(), nn.Linear(680, 680), nn.ReLU(), nn.Linear(680, 680), nn.ReLU(), nn.Linear(680, 10)
    )


def build_large() -> nn.Module:
    """100 million parameters: with Adam a state of 1.2 GB."""
    return nn.Sequential(nn.Linear(64, 4096), *(nn.Linear(4096, 4096) for _ in range(6)), nn.Linear(4096, 10))


def images(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 3, 32, 32), torch.randint(10, (count,)))


def texts(count: int) -> TensorDataset:
    return TensorDataset(torch.randint(256, (count, 64)), torch.randint(256, (count, 64)))


def points(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 64), torch.randint(10, (count,)))


def next_character(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


WORKLOADS = {
    "cnn": Workload(build_cnn, _momentum, images, F.cross_entropy, 64),
    "transformer": Workload(build_transformer, _adamw, texts, next_character, 16),
    "small": Workload(build_small, _adamw, points, F.cross_entropy, 256),
    "large": Workload(build_large, _adamw, points, F.cross_entropy, 16),
}
