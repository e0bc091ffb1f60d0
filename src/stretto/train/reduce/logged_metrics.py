"""Values that a script logs in its slices, averaged over the slices in tree order: the same for any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stretto.core.errors import ScriptError
from stretto.core.slices import Span, split

Row = dict[str, float]


def number(name: str, value: Any) -> float:
    """A logged value as a number."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ScriptError(f"step.log({name}=…) got a tensor of shape {tuple(value.shape)}: log one number, such as its mean()")
        return float(value.item())
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ScriptError(f"step.log({name}=…) got a {type(value).__name__}: log a number or a tensor with one element") from None


def average(rows: Mapping[int, Row], weights: Mapping[int, int], slices: int) -> Row:
    """The weighted mean of every name over the slices that logged it."""
    names = sorted({name for row in rows.values() for name in row})
    return {name: _mean(name, rows, weights, slices) for name in names}


def _mean(name: str, rows: Mapping[int, Row], weights: Mapping[int, int], slices: int) -> float:
    def fold(node: Span) -> tuple[float, float]:
        if len(node) == 1:
            row = rows.get(node.low, {})
            weight = float(weights.get(node.low, 0))
            return (row[name] * weight, weight) if name in row else (0.0, 0.0)
        (left, left_weight), (right, right_weight) = (fold(child) for child in split(node))
        return left + right, left_weight + right_weight

    total, weight = fold(Span(0, slices))
    return total / weight if weight else float("nan")
