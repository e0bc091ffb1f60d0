"""Which samples a dataset has: a split that every process has drawn for itself, before `stretto.join`, shows here."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from stretto.train.data.dataset_changes import within

SAMPLES = 1 << 14
"""Entries that are looked at."""


def identity(dataset: Any) -> dict[str, str]:
    """A short hash for each `Subset` and `TensorDataset` in a dataset; other kinds are not looked into."""
    found: dict[str, str] = {}
    for place, one in enumerate(within(dataset)):
        name = f"dataset{place or ''}"
        if isinstance(one, Subset):
            chosen = one.indices if hasattr(one.indices, "__getitem__") else list(one.indices)
            found[f"{name}.indices"] = _hash(str([int(index) for index in chosen[:: max(1, len(chosen) // SAMPLES)]]).encode())
        elif isinstance(one, TensorDataset):
            found.update(
                {
                    f"{name}.tensors[{k}]": _hash(_bytes(tensor))
                    for k, tensor in enumerate(one.tensors)
                    if tensor.layout is torch.strided and not tensor.is_quantized
                }
            )
    return found


def _bytes(tensor: torch.Tensor) -> bytes:
    rows = tensor.detach()[:: max(1, len(tensor) // SAMPLES)] if tensor.dim() else tensor.detach()
    return bytes(rows.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()) if rows.numel() else b""


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=6).hexdigest()
