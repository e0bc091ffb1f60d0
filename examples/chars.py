"""A character transformer on a small English text, with AdamW, clipping and a cosine schedule.

python examples/chars.py
stretto run --workers 1:4 examples/chars.py --epochs 10
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import stretto

ROOT = Path(__file__).resolve().parent.parent
LENGTH = 64
TEXTS = [ROOT / "LICENSE", ROOT / "examples" / "chars.txt"]
"""Texts that never change: the digest of this example depends on every byte."""


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Overlapping windows of a text, as bytes; the target of each character is the next one."""

    def __init__(self, paths: list[Path], *, length: int) -> None:
        text = b"\n".join(path.read_bytes() for path in paths)
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.length = length

    def __len__(self) -> int:
        return (len(self.text) - self.length - 1) // (self.length // 2) + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * (self.length // 2)
        window = self.text[start : start + self.length + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.before_mlp(x)))


class Transformer(nn.Module):
    def __init__(self, *, width: int = 64, heads: int = 4, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.characters = nn.Embedding(256, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.places.weight[: text.shape[1]]
        # The embedding is used a second time as the output layer.
        return self.norm(self.blocks(x)) @ self.characters.weight.T


def main() -> None:
    options = argparse.ArgumentParser(description="Train a character transformer on a text.")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--lr", type=float, default=3e-3)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--slices", type=int, default=8)
    options.add_argument("--text", type=Path, nargs="+", default=TEXTS)
    args = options.parse_args()

    job = stretto.join(seed=args.seed)
    windows = Windows(args.text, length=LENGTH)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * (len(windows) // args.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    job.share(model=model, optimizer=optimizer, schedule=schedule)
    data = job.loader(windows, batch_size=args.batch_size, slices=args.slices)

    for _ in job.epochs(args.epochs):
        for step in data:
            for text, following in step:
                loss = F.cross_entropy(model(text).flatten(0, 1), following.flatten())
                loss.backward()
                step.log(loss=loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()

    if job.chief:
        print(f"digest {job.digest()}")


if __name__ == "__main__":
    main()
