"""One pass of a step on this worker: gradients, buffers and header, reduced over the roster.

Buckets are exchanged on a thread of their own while the last slice's backward goes on. The header goes last: when all headers
are here, the pass has happened, on this worker and, unless one dies at this moment, on all.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch

from stretto.core import threads
from stretto.core.slices import Span
from stretto.train.entry.failpoints import failpoint
from stretto.train.position import Directives
from stretto.train.reduce.accumulation import SumOp, SumSchedule, sum_schedule
from stretto.train.reduce.buffers import Buffers
from stretto.train.reduce.gradients import Bucket, Gradients
from stretto.train.reduce.process_group import ProcessGroup
from stretto.train.reduce.tree_allreduce import TreeAllreduce

if TYPE_CHECKING:
    from stretto.train.sharing.optimizer_hooks import OptimizerHooks
    from stretto.train.sharing.shared_objects import SharedObjects

CLOSE_S = 10.0
"""How long `close` waits for an exchange under way. One whose group was aborted ends at once."""


@dataclass(slots=True)
class Header:
    """What each member sends with its pass: the flags and measurements that all members decide from."""

    offer: int = 0
    again: bool = False
    """The pass has to be repeated: its gradients or buffers were handled wrongly here."""
    moving: list[int] = field(default_factory=list[int])
    """Buffers that were seen to change for the first time."""
    used: str = "0"
    """Bits of the parameters that had a gradient, in hexadecimal."""
    rows: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Logged values by slice."""
    stop: bool = False
    digest: list[int | str] = field(default_factory=list[int | str])
    """Step and digest, where one was taken."""
    note: Directives = field(default_factory=Directives)
    """For the next boundary."""
    parts: int = 1
    """Pieces that each slice was accumulated from here. Where members differ, the pass is repeated with the most."""
    spent: list[float] = field(default_factory=list[float])
    """Seconds in the script's slices, and how many these were."""
    norms: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Squared gradient norms by unit and parameter group, where they are measured."""
    finite: bool = True
    """Neither NaN nor infinity in the part of the reduced gradient that this member owns, where that is watched."""
    resend: bool = False
    """The state that this member was given was changed before its first step: it needs it once more."""
    blob: bytes = b""
    """What the script has summed and gathered (reduce/sums.py); travels behind the JSON. Empty where it does neither."""

    def encode(self) -> bytes:
        """Four bytes with the length of the JSON, the JSON, the blob."""
        text = json.dumps(
            [
                self.offer,
                self.again,
                self.moving,
                self.used,
                self.rows,
                self.stop,
                self.digest,
                self.note,
                self.parts,
                self.spent,
                self.norms,
                self.finite,
                self.resend,
            ],
            separators=(",", ":"),
        ).encode()
        return len(text).to_bytes(4, "little") + text + self.blob

    @staticmethod
    def decode(message: bytes) -> Header:
        end = 4 + int.from_bytes(message[:4], "little")
        return Header(*json.loads(message[4:end]), blob=message[end:])


class Reducer:
    """Works for one group at a time; `join` moves it to another."""

    def __init__(self, slices: int) -> None:
        self.slices = slices
        self.exchange: TreeAllreduce | None = None
        self.schedule: SumSchedule = sum_schedule(slices, Span(0, slices))
        self.gradients: Gradients | None = None
        self.buffers: Buffers | None = None
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._failure: BaseException | None = None
        self._done = threading.Condition()
        self._scale = self._mean = 1.0
        self.watch = False
        """Whether a NaN or an infinity in the gradient is looked for."""
        self._norms: list[torch.Tensor] = []
        self._train = True
        """Whether this pass has gradients; buffers may move in an evaluation too."""

    @property
    def share(self) -> Span:
        assert self.exchange is not None
        return self.exchange.shares[self.exchange.group.rank]

    def join(self, group: ProcessGroup) -> None:
        self.settle()
        self.exchange = TreeAllreduce(group, self.slices)
        self.schedule = sum_schedule(self.slices, self.share)

    def close(self) -> None:
        """Takes the hooks off and ends the thread."""
        if self.gradients is not None:
            self.gradients.close()
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(CLOSE_S)
            self._thread = None

    def settle(self) -> BaseException | None:
        """Waits for what the thread still does for an older group: it has failed or is about to. What it failed with."""
        with self._done:
            while self._pending:
                self._done.wait()
            failure, self._failure = self._failure, None
        return failure

    def begin(self, *, scale: float, mean: float, train: bool, compare: Callable[[TreeAllreduce], None] | None = None) -> None:
        """A pass starts. `scale` multiplies the sum of the gradients, `mean` that of the buffers.

        `compare` runs on the exchange's thread before anything is added up; what it raises, `reduce` raises.
        """
        self.settle()
        self._norms = []
        self._scale, self._mean = scale, mean
        self._train = train
        if compare is not None and self.exchange is not None and self.exchange.group.size > 1:
            exchange = self.exchange
            self._submit(lambda: compare(exchange))
        if train and self.gradients is not None:
            alone = self.exchange is not None and self.exchange.group.size == 1
            self.gradients.begin(self.schedule, self._launch, scale=scale if alone else None)
        if self.buffers is not None:
            self.buffers.begin(self.schedule)

    def _launch(self, bucket: Bucket) -> None:
        exchange = self.exchange
        assert exchange is not None
        parts = bucket.parts(self.schedule)
        if exchange.group.size == 1:
            exchange.sum(parts, finish=self._record_norm)
            return
        self._submit(lambda: self._sum(exchange, parts))

    def _submit(self, order: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threads.start(self._work, name="stretto-exchange", stop=lambda: self._orders.put(None))
        with self._done:
            self._pending += 1
        self._orders.put(order)

    def _sum(self, exchange: TreeAllreduce, parts: dict[Span, torch.Tensor]) -> None:
        failpoint("bucket")
        exchange.sum(parts, finish=self._finish)

    def _finish(self, segment: torch.Tensor) -> None:
        self._record_norm(segment.mul_(self._scale))

    def _record_norm(self, segment: torch.Tensor) -> None:
        if self.watch and segment.numel():
            self._norms.append(cast("torch.Tensor", torch.linalg.vector_norm(segment)))

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                if self._failure is None:
                    order()
            except BaseException as error:
                self._failure = error
            with self._done:
                self._pending -= 1
                self._done.notify_all()

    def _wait(self) -> None:
        with self._done:
            while self._pending:
                self._done.wait()
            if self._failure is not None:
                raise self._failure

    def reduce(self, header: Header) -> list[Header]:
        """Finishes the pass: buckets, buffers, headers. Raises `Broken` where a peer is gone."""
        exchange = self.exchange
        assert exchange is not None
        self._wait()
        if self.buffers is not None:
            for vector in self.buffers.vectors(self.schedule):
                exchange.sum(vector, finish=lambda _: None)
            header.again = bool(self.buffers.again)
            header.moving = sorted(self.buffers.again)
        if self._train and self.gradients is not None:
            header.again = header.again or self.gradients.again
            header.finite = not self._norms or bool(torch.stack([norm.cpu() for norm in self._norms]).isfinite().all())
            header.used = format(sum(1 << place for place in self.gradients.used), "x")
        failpoint("header")
        headers = [Header.decode(text) for text in exchange.all_gather(header.encode())]
        failpoint("told")
        return headers

    def finish(self, headers: list[Header]) -> None:
        """The pass of all members is here and counted: gradients and buffers get their values."""
        if self.buffers is not None:
            self.buffers.finish(self.schedule, self._mean)
        if not self._train or self.gradients is None:
            return
        bits = 0
        for header in headers:
            bits |= int(header.used, 16)
        used = {place for place in range(len(self.gradients.parameters)) if bits >> place & 1}
        self.gradients.finish(used, self.schedule)

    # ---- what did not happen

    def undo(self, headers: list[Header]) -> None:
        """The pass was computed wrongly somewhere: it is repeated with what all members have learnt from it."""
        assert self.gradients is not None and self.buffers is not None
        self.restore_buffers()
        self.gradients.undo()
        for header in headers:
            self.buffers.moving |= set(header.moving)
        if any(header.again and not header.moving for header in headers):
            self.gradients.twice = True
            self.gradients.eager = False

    def undo_gradients(self) -> None:
        """Gives parameters the gradients that they had before the pass."""
        if self.gradients is not None:
            self.gradients.undo()

    def restore_buffers(self) -> None:
        """Gives buffers the values that they had before the pass."""
        if self.buffers is not None:
            self.buffers.restore()

    def abandon(self) -> bool:
        """Ends the pass on this worker alone. Returns whether some of its gradient was on its way to the others."""
        assert self.gradients is not None
        launched = bool(self.gradients.launched)
        self.gradients.close()
        self.restore_buffers()
        return launched

    # ---- slices

    def enter_buffers(self) -> None:
        """A slice begins whose results are not exchanged: buffers get their values from before the pass."""
        if self.buffers is not None:
            self.buffers.enter()

    def leave_loop(self) -> None:
        """The script has left the loop over its slices early."""
        if self.gradients is not None:
            self.gradients.inside = False

    def enter(self, op: SumOp, *, weight: float | None, last: bool, part: tuple[int, int] = (0, 1)) -> None:
        """A slice starts, or one of its parts: `part` is its place and how many there are."""
        if part[0] == 0 and self.buffers is not None:
            self.buffers.enter()
        if self._train and self.gradients is not None:
            self.gradients.enter(op, weight=weight, last=last, part=part)

    def leave(self, op: SumOp, *, weight: float | None, part: tuple[int, int] = (0, 1)) -> None:
        if self._train and self.gradients is not None:
            self.gradients.leave()
        if part[0] == part[1] - 1 and self.buffers is not None:
            self.buffers.leave(op, weight=weight)

    def skip(self, op: SumOp, *, last: bool) -> None:
        """A slice without samples."""
        if self._train and self.gradients is not None:
            self.gradients.empty(op, last=last)
        if self.buffers is not None:
            self.buffers.enter()
            self.buffers.leave(op, weight=None, empty=True)


class ReducedParameters:
    """The parameters whose gradients are reduced: all that were trained at some time, since scripts freeze and thaw them.

    Parameters are named by their place in `SharedObjects.all_parameters`.
    """

    def __init__(self, shared: SharedObjects, *, reducer: Reducer, hooks: OptimizerHooks) -> None:
        self._shared = shared
        self._reducer = reducer
        self._hooks = hooks
        self._at_boundary: set[int] | None = None
        """Those that were trained at the last boundary."""
        self.reduced: set[int] = set()
        self.thawed: set[int] = set()
        """Those that a step has thawed before its first pass. Frozen between two steps, they are nothing that was set once."""

    def trained(self) -> set[int]:
        """Those that are trained now."""
        return {place for place, parameter in enumerate(self._shared.all_parameters()) if parameter.requires_grad}

    def prepare(self, reduced: set[int] | None = None) -> None:
        """Reduces the gradients of these parameters from now on; by default also of all that are trained now."""
        reducer = self._reducer
        self.reduced = self.reduced | self.trained() if reduced is None else reduced
        parameters = [parameter for place, parameter in enumerate(self._shared.all_parameters()) if place in self.reduced]
        if reducer.gradients is not None:
            reducer.gradients.close()
        moving = reducer.buffers.moving if reducer.buffers is not None else set[int]()
        reducer.gradients = self._hooks.gradients = Gradients(parameters)
        reducer.buffers = Buffers(self._shared.modules)
        reducer.buffers.moving |= moving

    def at_boundary(self) -> None:
        """Between two steps."""
        self._at_boundary = self.trained()

    def begin_pass(self, *, first: bool) -> None:
        """A training pass begins, the `first` of its step or a later one."""
        trained = self.trained()
        if not trained <= self.reduced:
            self.prepare()
        if first and self._at_boundary is not None:
            self.thawed |= trained - self._at_boundary

    def frozen_between_steps(self) -> set[int]:
        """Ids of parameters that are frozen now and that every step thaws."""
        return {
            id(parameter)
            for place, parameter in enumerate(self._shared.all_parameters())
            if place in self.thawed and not parameter.requires_grad
        }
