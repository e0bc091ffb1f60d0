"""Per-slice gradients, added up along the fixed tree while backward produces them.

Each parameter has a hook that takes its gradient the moment it is accumulated and frees it, so that memory stays at a few flat
buffers. A script that calls `backward` more than once in a slice is noticed: its gradients are then taken at the end of the slice.
On the last slice of a share, buckets are handed out for the exchange as soon as they are complete, in the same order everywhere.

The result is added to whatever `p.grad` held when the pass began, as PyTorch does. Where it held nothing, `p.grad` becomes a view
of a flat buffer; a buffer whose view is still in use when the next pass begins is left to its user and replaced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch.utils.hooks import RemovableHandle

from stretto.core.errors import ScriptError
from stretto.core.slices import Span
from stretto.train.reduce.accumulation import Flat, SumOp, SumSchedule

BUCKET_BYTES = 25 << 20


class Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        first = parameters[0]
        self.parameters = parameters
        self.flat = Flat([p.shape for p in parameters], dtype=_sum_type(first.dtype), device=first.device)
        self.missing = 0
        self._lent: list[tuple[int, weakref.ref[torch.Tensor]]] = []
        """Views that became gradients, with their buffers."""

    def lend(self, buffer: int, place: int) -> torch.Tensor:
        """A new tensor over one view of a buffer, to become a parameter's gradient."""
        gradient = self.flat.views[buffer][place].detach()
        self._lent.append((buffer, weakref.ref(gradient)))
        return gradient

    def reclaim(self) -> None:
        """Before a pass: replaces the buffers of which a view is still in use."""
        for buffer in {buffer for buffer, view in self._lent if view() is not None}:
            self.flat.renew(buffer)
        self._lent = []

    def parts(self, schedule: SumSchedule) -> dict[Span, torch.Tensor]:
        return {node: self.flat.buffers[buffer] for node, buffer in schedule.results.items()}


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _buckets(parameters: Iterable[torch.nn.Parameter]) -> list[Bucket]:
    """In reverse order, as backward produces gradients; one dtype and device each."""
    buckets: list[Bucket] = []
    unfilled: dict[tuple[torch.dtype, torch.device], tuple[list[torch.nn.Parameter], int]] = {}
    for parameter in reversed(list(parameters)):
        if parameter.is_complex():
            raise ScriptError(
                f"a shared parameter of shape {tuple(parameter.shape)} is complex: only real ones can be reduced; "
                "make `torch.view_as_real(…)` of it the parameter, and `torch.view_as_complex` of that in forward"
            )
        key = (parameter.dtype, parameter.device)
        members, size = unfilled.pop(key, ([], 0))
        members.append(parameter)
        size += parameter.numel() * _sum_type(parameter.dtype).itemsize
        if size >= BUCKET_BYTES:
            buckets.append(Bucket(members))
        else:
            unfilled[key] = (members, size)
    return buckets + [Bucket(members) for members, _ in unfilled.values()]


def _hooked(parameter: torch.nn.Parameter, arrived: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """A hook for the parameter's gradient, also of one that is frozen at the moment."""
    frozen = not parameter.requires_grad
    parameter.requires_grad_(True)
    handle = cast("RemovableHandle", parameter.register_post_accumulate_grad_hook(arrived))
    parameter.requires_grad_(not frozen)
    return handle


class Gradients:
    """The gradients of all shared parameters for one pass at a time."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.buckets = _buckets(parameters)
        self.inside = False
        """A slice is being computed."""
        self.eager = False
        """The hooks take the gradients. Known to be right once each slice of a whole pass had one backward."""
        self.twice = False
        """Some slice has had more than one backward."""
        self.again = False
        """What was taken is wrong: the pass has to be repeated."""
        self.before: dict[torch.nn.Parameter, torch.Tensor] = {}
        """What `p.grad` held when the pass began."""
        self._versions: dict[torch.nn.Parameter, tuple[int, int]] = {}
        """Identity and version of each gradient as backward left it, where hooks do not take it."""
        self._index = {parameter: (bucket, place) for bucket in self.buckets for place, parameter in enumerate(bucket.parameters)}
        self._order = {parameter: place for place, parameter in enumerate(parameters)}
        self._fired: dict[torch.nn.Parameter, int] = {}
        self._op: SumOp | None = None
        self._weight: float | None = None
        self._last = False
        self._parted = False
        self._final = True
        self._sums: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Of the parts of the slice at hand: a slice is one leaf of the tree, so its parts are added up by themselves."""
        self._launched = 0
        self._open = False
        self._launch: Callable[[Bucket], None] | None = None
        self._scale: float | None = None
        self.used: set[int] = set()
        self.squares: Callable[[torch.Tensor, torch.nn.Parameter], None] | None = None
        """Called with each slice's gradient of each parameter, where the noise scale is measured."""
        self.handles = [_hooked(parameter, self._arrived) for parameter in parameters]

    @property
    def launched(self) -> int:
        """Buckets of this pass that are on their way."""
        return self._launched

    def allocate(self, schedule: SumSchedule) -> list[list[torch.Tensor]]:
        """Buffers for each bucket. Changes nothing here, so any thread may call it; the training thread calls `adopt`."""
        return [[bucket.flat.allocate() for _ in range(schedule.buffers)] for bucket in self.buckets]

    def adopt(self, buffers: list[list[torch.Tensor]]) -> None:
        """Uses these buffers from the next pass on. Those of another layout are dropped."""
        for bucket, spare in zip(self.buckets, buffers, strict=False):
            bucket.flat.spare = [
                tensor for tensor in spare if tensor.numel() == bucket.flat.length and tensor.dtype == bucket.flat.dtype
            ]

    def begin(self, schedule: SumSchedule, launch: Callable[[Bucket], None], *, scale: float | None = None) -> None:
        """A pass starts. `launch` is called for every bucket when its sums are complete, and multiplied by `scale`."""
        self.undo()
        self._scale = scale
        self.again = False
        self.used = set()
        self._sums = {}
        self._launched = 0
        self._launch = launch
        for bucket in self.buckets:
            bucket.reclaim()
            bucket.flat.need(schedule.buffers)
            bucket.missing = len(bucket.parameters)
        for parameter in self.parameters:
            if parameter.grad is not None:
                self.before[parameter] = parameter.grad
                parameter.grad = None
        self._open = True

    def undo(self) -> None:
        """Puts back what `p.grad` held when the pass began: the pass will be repeated, or has ended early."""
        if not self._open:
            return
        self._open = False
        before, self.before = self.before, {}
        for parameter in self.parameters:
            parameter.grad = before.get(parameter)

    def enter(self, op: SumOp, *, weight: float | None, last: bool, part: tuple[int, int] = (0, 1)) -> None:
        """A slice starts, or one of its parts. `weight` multiplies its gradients where they are not of one size."""
        self._op, self._weight = op, weight
        self._parted, self._final = part[1] > 1, part[0] == part[1] - 1
        self._last = last and self._final
        self._fired = {}
        self._versions = {}
        self.inside = True

    def leave(self) -> None:
        """The slice is done: what the hooks have not taken is taken now."""
        op = self._op
        assert op is not None
        self.inside = False
        for parameter in self.parameters:
            bucket, place = self._index[parameter]
            gradient = parameter.grad
            if self._fired.get(parameter, 0) and self.eager:
                if gradient is not None:  # put there by hand, after backward
                    self.again = self.twice = True
                continue
            self._check_untouched(parameter, gradient)
            self._add(bucket, place, op, gradient, parameter)
            parameter.grad = None
        if self._last:
            for bucket in self.buckets[self._launched :]:
                self._start(bucket)

    def _check_untouched(self, parameter: torch.nn.Parameter, gradient: torch.Tensor | None) -> None:
        """Refuses a slice that changed a gradient after backward had made it."""
        left = self._versions.get(parameter)
        if left is None or (gradient is not None and (id(gradient), gradient._version) == left):
            return
        raise ScriptError(
            f"the gradient of a parameter of shape {tuple(parameter.shape)} was changed inside the loop over the slices: there it "
            "is the gradient of one slice only; move clip_grad_norm_, unscale_ and the like after the loop, where p.grad "
            "is the gradient of the whole batch"
        )

    def empty(self, op: SumOp, *, last: bool) -> None:
        """A slice without samples."""
        self.enter(op, weight=None, last=last)
        self.leave()

    def finish(self, used: set[int], schedule: SumSchedule) -> None:
        """The reduced sums are added to the parameters' gradients. Where no slice had one, they stay as they were."""
        result = schedule.results[min(schedule.results)]
        before, self.before, self._open = self.before, {}, False
        for bucket in self.buckets:
            for place, parameter in enumerate(bucket.parameters):
                earlier = before.get(parameter)
                if self._order[parameter] in used:
                    earlier = self._accumulated(earlier, bucket, result, place)
                parameter.grad = earlier
        self.eager = not self.twice

    @staticmethod
    @torch.no_grad()
    def _accumulated(earlier: torch.Tensor | None, bucket: Bucket, buffer: int, place: int) -> torch.Tensor:
        view, dtype = bucket.flat.views[buffer][place], bucket.parameters[place].dtype
        if earlier is None:
            return bucket.lend(buffer, place) if view.dtype == dtype else view.to(dtype)
        return earlier.add_(view.to(dtype))

    def _arrived(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, torch.nn.Parameter)
        if not self.inside:
            raise ScriptError(
                f"backward was called outside the loop over a training step's slices (a shared parameter of shape "
                f"{tuple(parameter.shape)} got a gradient): call it inside the loop, once for every slice; for "
                "gradients of inputs use torch.autograd.grad"
            )
        count = self._fired.get(parameter, 0) + 1
        self._fired[parameter] = count
        if count > 1:
            self.twice = True
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise ScriptError(
                f"a parameter of shape {tuple(parameter.shape)} has a {gradient.layout} gradient, only dense ones can be "
                "reduced: use sparse=False in nn.Embedding"
            )
        if not self.eager:
            if gradient is not None:
                self._versions[parameter] = (id(gradient), gradient._version)
            return
        if count > 1:
            self.again = True
            self.eager = False
            return
        assert self._op is not None
        bucket, place = self._index[parameter]
        parameter.grad = None
        self._add(bucket, place, self._op, gradient, parameter)

    def _add(self, bucket: Bucket, place: int, op: SumOp, gradient: torch.Tensor | None, parameter: torch.nn.Parameter) -> None:
        if gradient is not None:
            self.used.add(self._order[parameter])
            if self.squares is not None:
                self.squares(gradient, parameter)
            if self._weight is not None:
                gradient = gradient.to(bucket.flat.dtype) * self._weight
        if self._parted:
            gradient = self._sum_parts(parameter, gradient)
            if not self._final:
                return
        value = None if gradient is None else gradient.detach()
        bucket.flat.add(op, place, value, keep=True, scale=self._scale if self._last else None)
        if self._last:
            bucket.missing -= 1
            if bucket.missing == 0 and self.eager:
                self._launch_complete()

    def _sum_parts(self, parameter: torch.nn.Parameter, gradient: torch.Tensor | None) -> torch.Tensor | None:
        earlier = self._sums.pop(parameter, None)
        total = earlier.add_(gradient) if earlier is not None and gradient is not None else gradient if earlier is None else earlier
        if total is not None and not self._final:
            self._sums[parameter] = total
        return total

    def _launch_complete(self) -> None:
        while self._launched < len(self.buckets) and self.buckets[self._launched].missing == 0:
            self._start(self.buckets[self._launched])

    def _start(self, bucket: Bucket) -> None:
        assert self._launch is not None
        self._launched += 1
        self._launch(bucket)

    def close(self) -> None:
        """Ends a pass under way and removes the hooks."""
        self.undo()
        for handle in self.handles:
            handle.remove()
