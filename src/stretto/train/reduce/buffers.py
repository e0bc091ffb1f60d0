"""Module buffers: every slice starts from the step's values; at the end the slices' values are combined in tree order.

Floating-point buffers become the weighted mean over the slices, integers (counters) the start value plus all increments,
booleans whatever any slice set. Only buffers that op take part: those of batch norms from the start, others from the
first time that one is seen to change, when the pass is repeated with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import torch

from stretto.core.errors import ScriptError
from stretto.core.slices import Span
from stretto.train.reduce.accumulation import Flat, SumOp, SumSchedule


def _kind(tensor: torch.Tensor) -> torch.dtype:
    if tensor.dtype == torch.float64:
        return torch.float64
    return torch.float32 if tensor.is_floating_point() else torch.int64


def modules_of(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """A module and all modules in it, with their paths; torch leaves the type of `named_modules` open."""
    return cast("Iterator[tuple[str, torch.nn.Module]]", root.named_modules())


class Buffers:
    """All buffers of the shared modules, combined over the slices of each pass."""

    def __init__(self, modules: Iterable[tuple[str, torch.nn.Module]]) -> None:
        self.slots: list[tuple[torch.nn.Module, str]] = []
        self.names: list[str] = []
        seen: set[int] = set()
        moving: set[int] = set()
        for shared, root in modules:
            for path, module in modules_of(root):
                if isinstance(module, torch.nn.SyncBatchNorm):
                    raise ScriptError(
                        f"{shared}.{path} is a SyncBatchNorm, whose statistics depend on the number of workers: use BatchNorm, "
                        "whose statistics here are those of a slice, the same for any number of workers"
                    )
                for name, tensor in module._buffers.items():
                    if tensor is None or id(tensor) in seen:
                        continue
                    seen.add(id(tensor))
                    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
                        moving.add(len(self.slots))
                    self.slots.append((module, name))
                    self.names.append(f"{shared}.{path}.{name}")
        self.moving: set[int] = moving
        self.again: set[int] = set()
        self._start: list[torch.Tensor] = []
        self._versions: list[tuple[int, int]] = []
        self._groups: dict[tuple[torch.dtype, torch.device], tuple[list[int], Flat]] = {}

    def _get(self, place: int) -> torch.Tensor:
        module, name = self.slots[place]
        tensor = module._buffers[name]
        assert tensor is not None
        return tensor

    def _same_shape(self, place: int) -> torch.Tensor:
        tensor, start = self._get(place), self._start[place]
        if tensor.shape != start.shape:
            raise ScriptError(
                f"{self.names[place]} has the shape {tuple(tensor.shape)} and had {tuple(start.shape)} when training "
                "began: buffers keep their shapes while a model is trained. Where the first batch gives a buffer its "
                "shape (observers of quantization), run one batch through the model before job.share"
            )
        return tensor

    def begin(self, schedule: SumSchedule) -> None:
        """A pass starts: its start values are kept."""
        self.again = set()
        if not self.slots:
            return
        if len(self._start) != len(self.slots):
            self._start = [self._get(k).detach().clone() for k in range(len(self.slots))]
        else:
            for place, kept in enumerate(self._start):
                kept.copy_(self._same_shape(place).detach())
        self._layout()
        for _, flat in self._groups.values():
            flat.need(schedule.buffers)

    def _layout(self) -> None:
        wanted: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for place in sorted(self.moving):
            start = self._start[place]
            wanted.setdefault((_kind(start), start.device), []).append(place)
        if {key: places for key, (places, _) in self._groups.items()} != wanted:
            self._groups = {
                key: (places, Flat([self._start[p].shape for p in places], dtype=key[0], device=key[1]))
                for key, places in wanted.items()
            }

    def enter(self) -> None:
        """A slice starts: from the start values."""
        with torch.no_grad():
            for place, kept in enumerate(self._start):
                tensor = self._get(place)
                if place in self.moving:
                    tensor.copy_(kept)
        self._versions = [(id(t), t._version) for t in map(self._get, range(len(self.slots)))]

    @torch.no_grad()
    def leave(self, op: SumOp, *, weight: float | None, empty: bool = False) -> None:
        """A slice ends: its values go into the tree."""
        for place, before in enumerate(self._versions):
            tensor = self._same_shape(place)
            if place not in self.moving and (id(tensor), tensor._version) != before and not empty:
                if not torch.equal(tensor, self._start[place]):
                    self.again.add(place)
        for places, flat in self._groups.values():
            for k, place in enumerate(places):
                flat.add(op, k, None if empty else self._contribution(place, flat.dtype, weight))

    def _contribution(self, place: int, kind: torch.dtype, weight: float | None) -> torch.Tensor:
        value, start = self._get(place).detach(), self._start[place]
        if kind == torch.int64:
            return value.to(torch.int64) - (start.to(torch.int64) if value.dtype != torch.bool else 0)
        return value.to(kind) if weight is None else value.to(kind) * weight

    def vectors(self, schedule: SumSchedule) -> list[dict[Span, torch.Tensor]]:
        """What has to be summed over all slices, in an order that is the same everywhere."""
        return [
            {node: flat.buffers[buffer] for node, buffer in schedule.results.items()}
            for _, (_, flat) in sorted(self._groups.items(), key=lambda item: str(item[0]))
        ]

    @torch.no_grad()
    def finish(self, schedule: SumSchedule, scale: float) -> None:
        """The sums become the buffers' values."""
        result = schedule.results[min(schedule.results)]
        for places, flat in self._groups.values():
            for place, view in zip(places, flat.views[result], strict=True):
                tensor, start = self._get(place), self._start[place]
                if flat.dtype != torch.int64:
                    tensor.copy_(view * scale)
                elif tensor.dtype == torch.bool:
                    tensor.copy_(view > 0)
                else:
                    tensor.copy_(start + view.to(start.dtype))

    @torch.no_grad()
    def restore(self) -> None:
        """Back to the start values: the pass will be repeated."""
        for place, kept in enumerate(self._start):
            self._get(place).copy_(kept)
