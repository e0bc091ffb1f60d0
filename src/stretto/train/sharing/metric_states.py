"""The states of one torchmetrics object: how slices begin with them, and how what slices have made of them is merged."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stretto.core.errors import ScriptError

CHUNKS = 64
"""A list of more tensors than this that would be concatenated in the end is concatenated at once: states stay cheap to send."""
SCRATCH = ("_computed", "_forward_cache", "_update_count")
UNTOUCHED = object()
"""Stands in a metric's forward cache from the beginning of a slice: `reset` puts None there."""


@dataclass(frozen=True, slots=True)
class Before:
    """A metric as it was before a slice."""

    states: dict[str, Any]
    count: int
    computed: Any
    cache: Any
    numbers: dict[str, int | float]


def kind_of(path: str, metric: Any, name: str) -> str:
    """The operation that merges a state."""
    default, reduction = metric._defaults[name], metric._reductions[name]
    data = sys.modules["torchmetrics.utilities.data"]
    known = {
        data.dim_zero_sum: "state.sum",
        data.dim_zero_mean: "state.mean",
        data.dim_zero_max: "state.max",
        data.dim_zero_min: "state.min",
        data.dim_zero_cat: "state.list",
        None: "state.list",
    }
    kind = known.get(reduction)
    text = getattr(reduction, "__name__", str(reduction))
    if kind is None:
        raise ScriptError(
            f"{path} is a {type(metric).__name__}, whose state {name} is reduced by {text}: shared metrics may use "
            "dist_reduce_fx='sum', 'mean', 'max', 'min', 'cat' or None"
        )
    if isinstance(default, list) and kind != "state.list":
        raise ScriptError(
            f"{path} is a {type(metric).__name__}, whose state {name} is a list that is reduced by {text}: lists "
            "have dist_reduce_fx='cat' or None"
        )
    if isinstance(default, torch.Tensor) and kind == "state.sum" and bool(default.count_nonzero()):
        raise ScriptError(
            f"{path} is a {type(metric).__name__}, whose state {name} is a sum that begins with {default.tolist()}: "
            "every slice begins with it, so a sum must begin with zeros"
        )
    if isinstance(default, torch.Tensor) and reduction is data.dim_zero_cat and default.numel():
        raise ScriptError(
            f"{path} is a {type(metric).__name__}, whose state {name} is concatenated and begins with "
            f"{default.tolist()}: every slice begins with it, so it must begin empty"
        )
    return kind


def begin(metric: Any, names: Iterable[str]) -> Before:
    """Gives a metric the states that every slice begins with."""
    before = Before(
        {name: getattr(metric, name) for name in names},
        metric._update_count,
        metric._computed,
        metric._forward_cache,
        {name: value for name, value in others(metric).items() if type(value) in (int, float)},
    )
    for name in names:
        default = metric._defaults[name]
        setattr(metric, name, default.detach().clone() if isinstance(default, torch.Tensor) else [])
    metric._update_count, metric._computed, metric._forward_cache = 0, None, UNTOUCHED
    return before


def others(metric: Any) -> dict[str, Any]:
    """Numbers and tensors that a metric keeps beside its states, such as the extremes of MinMaxMetric."""
    return {
        name: value
        for name, value in vars(metric).items()
        if (type(value) in (int, float) or isinstance(value, torch.Tensor)) and name not in metric._defaults and name not in SCRATCH
    }


def merged(metric: Any, name: str, kind: str, part: Any, *, count: int) -> Any:
    """A state with what the slices of a pass have added to it, in `count` updates. Nothing is changed in place."""
    held: Any = getattr(metric, name)
    before, in_list = metric._update_count, kind == "state.list" and not isinstance(metric._defaults[name], torch.Tensor)
    part = placed(part, torch.device("cpu") if metric.compute_on_cpu and in_list else metric.device)
    if kind == "state.sum":
        return held + part
    if kind == "state.mean":
        return (held * before + part) / (before + count) if before else part / count
    if kind != "state.list":
        return (torch.maximum if kind == "state.max" else torch.minimum)(held, part)
    if isinstance(held, torch.Tensor):
        return _stacked(held, part, fresh=not before, cat=metric._reductions[name] is not None)
    joined = held + part
    if metric._reductions[name] is not None and len(joined) > CHUNKS and len({_row(one) for one in joined}) == 1:
        return [torch.cat([one.reshape(-1) if not one.dim() else one for one in joined])]
    return joined


def _stacked(held: torch.Tensor, parts: list[torch.Tensor], *, fresh: bool, cat: bool) -> torch.Tensor:
    """As torchmetrics joins tensors of several processes: one row for each slice where no reduction is given."""
    if cat:
        return torch.cat([*([] if fresh else [held]), *parts])
    rows = [] if fresh else list(held) if held.dim() > parts[0].dim() else [held]
    rows += parts
    return rows[0] if len(rows) == 1 else torch.stack(rows)


def _row(one: Any) -> Any:
    return (one.dtype, one.shape[1:], one.device) if isinstance(one, torch.Tensor) else id(one)


def placed(value: Any, device: torch.device) -> Any:
    """Tensors, and those in lists, on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [placed(one, device) for one in value] if isinstance(value, list) else value


def copied(value: Any) -> Any:
    """Tensors, lists and dictionaries as copies."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value
