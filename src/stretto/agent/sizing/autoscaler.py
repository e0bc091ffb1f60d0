"""A job that sizes itself: commits in, wishes out. The deciding is in `stretto.batching.autoscale`; here is what it is told.

Rates are medians over the steps since the last change, so that one slow step decides nothing. The first steps of a roster are left
out: newcomers warm up, and the old ones have just sent them the state.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from stretto.batching.autoscale import AutoscaleConfig, AutoscaleState, Measurement, decide
from stretto.core.errors import UsageError
from stretto.core.journal import Commit
from stretto.core.text import quantity

SKIPPED = 3
"""Steps after a change that are not measured."""
RECENT = 200
"""Steps that a rate is taken over at most."""
STARTUP_S = 3.0
PAUSE_S = 0.1
"""What a change is taken to cost until one was measured."""


class Scaled(Protocol):
    """What the autoscaler needs of the agent."""

    @property
    def wanted(self) -> int: ...

    @property
    def free(self) -> int | None:
        """Workers that could be had besides those wanted; None where nobody knows a bound."""
        ...

    def scale(self, workers: int) -> None: ...

    def explain(self, text: str) -> None: ...


class Autoscaler:
    def __init__(self, config: AutoscaleConfig, agent: Scaled, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self._agent = agent
        self._clock = clock
        self._began = clock()
        self._workers = 0
        self._since = 0
        self._changed_step = 0
        self._rates: deque[float] = deque(maxlen=RECENT)
        self._seconds = 0.0
        self._measured: dict[int, Measurement] = {}
        self._startups: deque[float] = deque(maxlen=8)
        self._pauses: deque[float] = deque(maxlen=8)
        self._asked: tuple[int, float] | None = None
        self._said = ""

    def switched(self, *, workers: int, pause_ms: float, cause: str) -> None:
        """A roster is in effect."""
        if cause in ("join", "leave"):
            self._pauses.append(pause_ms / 1e3)
        if self._asked is not None and workers >= self._asked[0]:
            if cause == "join":
                self._startups.append(self._clock() - self._asked[1])
            self._asked = None

    def commit(self, commit: Commit, *, slices: int = 0) -> None:
        """A step was committed: the point at which a change may be asked for."""
        if slices != self.config.slices:
            self.config = replace(self.config, slices=slices, most=min(self.config.most, slices or self.config.most))
        self._measure(commit)
        wish = decide(self.config, self._state(commit))
        if wish.workers != self._agent.wanted:
            self._request(wish.workers, wish.reason)
        else:
            self._explain(wish.reason)

    def _measure(self, commit: Commit) -> None:
        workers, step_s = commit.workers, commit.step_s
        if workers != self._workers:
            self._workers, self._since, self._seconds = workers, 0, 0.0
            self._changed_step = commit.step
            self._rates.clear()
            self._measured.pop(workers, None)  # of an earlier stay: what was tried again for its age must not decide once more
        self._since += 1
        if self._since <= SKIPPED or step_s <= 0:
            return
        self._rates.append(commit.count / step_s)
        self._seconds += step_s
        measurement = Measurement(statistics.median(self._rates), self._now(), steps=len(self._rates), seconds=self._seconds)
        enough = measurement.steps >= self.config.steps and measurement.seconds >= self.config.window_s
        before = self._measured.get(workers)
        arrived = before.arrived if before is not None else None
        self._measured[workers] = replace(measurement, arrived=arrived or (measurement.rate if enough else None))

    def _state(self, commit: Commit) -> AutoscaleState:
        left, here = commit.left, self._measured.get(self._workers)
        remaining = None if left is None or here is None or here.rate <= 0 else left / here.rate
        return AutoscaleState(
            now_s=self._now(),
            workers=self._workers,
            wanted=self._agent.wanted,
            step=commit.step,
            measured=self._measured,
            remaining_s=remaining,
            changed_step=self._changed_step,
            pause_s=statistics.median(self._pauses) if self._pauses else PAUSE_S,
            startup_s=statistics.median(self._startups) if self._startups else STARTUP_S,
            free=self._agent.free,
        )

    def _request(self, workers: int, reason: str) -> None:
        before = self._agent.wanted
        try:
            self._agent.scale(workers)
        except UsageError as error:
            return self._explain(f"{reason}; refused: {error}")
        if workers > before:
            self._asked = (workers, self._clock())
        self._said = ""
        self._agent.explain(f"{before} to {quantity(workers, 'worker')}: {reason}")

    def _explain(self, reason: str) -> None:
        """Why nothing is changed: told when the kind of reason changes, not with every number in it."""
        kind = " ".join(word for word in reason.split() if not any(letter.isdigit() for letter in word))
        if kind != self._said and not reason.startswith(("measuring", "waiting")):
            self._said = kind
            self._agent.explain(reason)

    def _now(self) -> float:
        return self._clock() - self._began
