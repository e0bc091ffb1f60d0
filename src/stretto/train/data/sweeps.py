"""Sweeps over a loader, in all the ways that a script may go about them: for, enumerate, tqdm, islice, zip, next(iter(data))."""

from __future__ import annotations

import dis
import gc
import itertools
import sys
import weakref
from collections.abc import Generator, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from stretto.core.errors import ScriptError
from stretto.train.data.step import Step

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader

WRAPPERS = (enumerate, map, filter, itertools.chain, itertools.islice, zip)


class Sweeps:
    """Runs the sweeps of one loader, one at a time, and refuses loops that a joining worker could not repeat."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._number = 0
        self._drawn = 0
        """Steps that the present sweep has yielded."""
        self._current: weakref.ref[Generator[Step]] | None = None
        self._by_hand = False
        """Whether the present sweep's first step was drawn by next(...) and not by a loop."""

    def sweep(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Begins a sweep over these steps."""
        watch = self._loader.train and not self._number and not _plain_loop(sys._getframe(2))
        sweep = self._run(steps, watch)
        self._current = weakref.ref(sweep)
        return sweep

    def _run(self, steps: Iterator[Step], watch: bool) -> Generator[Step]:
        if watch and self._current is not None:
            _check_wrappers(self._current())
        self._number += 1
        number, self._drawn, self._by_hand = self._number, 0, _called(sys._getframe(1))
        self._loader.begin_sweep()
        step: Step | None = None
        ended = False
        try:
            for step in steps:
                self._drawn += 1
                yield step
                step.over = self._loader.train
                if self._number != number:
                    raise ScriptError(
                        f"two loops over loader {self._loader.number} at a time: its place is one; end the "
                        "first loop before the second begins, or make a loader for each"
                    )
            ended = True
        finally:
            if isinstance(steps, Generator):
                steps.close()
            if self._number == number:
                self._end(step, early=not ended)

    def _end(self, step: Step | None, *, early: bool) -> None:
        loader = self._loader
        loader.end_sweep(early=early)
        if step is not None and loader.train:
            step.over = True
        position = loader.runner.position
        if early and not loader.train and position.open is step and step is not None and not step.opened:
            position.open = None  # a look at an evaluation

    def check_left(self, step: Step) -> None:
        """The sweep was left at a step whose slices were never iterated over: refused if next(iter(data)) did so, not a loop."""
        if self._by_hand and self._drawn == 1:
            raise ScriptError(
                f"next(iter(data)) took step {step.index} out of its loop and left it, which ends an epoch: a "
                "training step belongs to all workers. To look at a batch use data.collate_fn([data.dataset[k] for "
                "k in range(8)]), or a loader with train=False"
            )


def _plain_loop(frame: FrameType) -> bool:
    """Whether `iter` is a for statement's own, in this frame: nothing stands between the loop and the loader."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("GET_ITER", "GET_YIELD_FROM_ITER")


def _called(frame: FrameType) -> bool:
    """Whether this frame is calling a function, such as next."""
    return "CALL" in dis.opname[frame.f_code.co_code[frame.f_lasti]]


def _check_wrappers(sweep: object) -> None:
    """Refuses iterators that count the steps of this process: a worker that joins in mid-epoch would count from its own first.

    Searches for the objects that refer to the sweep, which takes some hundredths of a second; once for each loader that is not
    simply looped over.
    """
    holder: object = sweep
    for _ in range(4):
        holder = _wrapper_of(holder)
        if holder is None:
            return
        if isinstance(holder, itertools.islice):
            raise ScriptError(
                "itertools.islice over a training loader counts the steps of this process, and a worker that "
                "joins in "
                "the middle of an epoch would count from its own first: leave the loop instead, at a step that "
                "is the same for all: `if step.index + 1 == last: break` at the end of its body"
            )
        if isinstance(holder, zip):
            raise ScriptError(
                "zip over a training loader: on a worker that joins in the middle of an epoch the other "
                "iterables would "
                "begin at their start. Give one loader both datasets (torch.utils.data.StackDataset), or take from "
                "the other by step.index"
            )


def _wrapper_of(iterator: object) -> object:
    """The iterator that wraps this one, or None. A zip keeps those that it draws from in a tuple."""
    holders: list[object] = gc.get_referrers(iterator)
    tuples = [holder for holder in holders if _is_tuple(holder)]
    holders += [holder for inner in tuples for holder in gc.get_referrers(inner) if isinstance(holder, zip)]
    return next((holder for holder in holders if _is_wrapper(holder)), None)


def _is_tuple(value: object) -> bool:
    return type(value) is tuple


def _is_wrapper(value: object) -> bool:
    return isinstance(value, WRAPPERS)
