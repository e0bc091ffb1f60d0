"""What the agent does with a job's measured speed: sizes the job if it was asked to, and deals with slow workers.

`stretto.batching.autoscale` and `stretto.batching.stragglers` decide; this module measures for them and does what they decide.
Rates are medians over the steps since the last change, so one slow step decides nothing. The first steps of a roster are left out:
newcomers warm up, and the old members have just sent them the state.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from stretto.agent.context import JobContext
from stretto.batching.autoscale import AutoscaleConfig, AutoscaleState, Measurement, decide
from stretto.batching.stragglers import Keep, Rebalance, Replace, StragglerConfig, StragglerState, judge, observe, parse_mode
from stretto.core.errors import UsageError
from stretto.core.journal import Commit
from stretto.core.messages import SwitchedMessage
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
    """Measures the rate of a job that sizes itself, and asks the agent for the number of workers that `decide` chooses."""

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


MOST_REPLACED = 8
"""Workers that a job replaces for being slow: a machine that is slow itself gets no faster by more of them."""


class Balanced(Protocol):
    """What is needed of the agent."""

    @property
    def shares(self) -> Sequence[tuple[str, int]]:
        """The members of the roster in effect with their numbers of slices, in its order; empty while it changes."""
        ...

    def set_speeds(self, speeds: Mapping[str, float]) -> None: ...

    def replace_worker(self, worker: str, reason: str) -> None: ...

    def explain_straggler(self, text: str) -> None: ...


class StragglerMonitor:
    """Measures slice times, and gives slow workers fewer slices or asks for their replacement."""

    def __init__(self, config: StragglerConfig, agent: Balanced) -> None:
        self.config = config
        self._agent = agent
        self._state = StragglerState()
        self._roster = 0
        self._replaced: set[str] = set()

    def commit(self, commit: Commit) -> None:
        times = commit.slice_s or {}
        if self.config.mode == "ignore" or not times:
            return
        if commit.roster != self._roster:
            self._roster = commit.roster
            self._state = replace(self._state, changed=0)
        self._state = observe(self.config, self._state, times)
        shares = self._agent.shares
        if {worker for worker, _ in shares} != set(times):
            return
        match judge(self.config, self._state, shares):
            case Keep():
                pass
            case Rebalance(speeds, reason):
                self._state = replace(self._state, changed=0, moves=self._state.moves + 1)
                self._agent.explain_straggler(reason)
                self._agent.set_speeds(speeds)
            case Replace(worker, reason):
                if worker not in self._replaced and len(self._replaced) < MOST_REPLACED:
                    self._replaced.add(worker)
                    self._state = replace(self._state, changed=0)
                    self._agent.explain_straggler(f"{reason}: it is replaced")
                    self._agent.replace_worker(worker, reason)


class SizingController:
    """Receives every commit once. Changes nothing itself: it asks the agent and the leader."""

    def __init__(self, context: JobContext, *, scale: Callable[[int], None], balance: Callable[[], None]) -> None:
        self._context = context
        self._scale = scale
        self._balance = balance
        self._slow: str | None = None
        """The worker that is being replaced: it trains until its successor is ready."""
        self._switched_to = 0
        config = context.options.sizing()
        self._autoscaler = Autoscaler(config, self) if config is not None else None
        self._stragglers = StragglerMonitor(StragglerConfig(mode=parse_mode(context.options.stragglers)), self)

    # ---- what happens

    def commit(self, commit: Commit) -> None:
        self._stragglers.commit(commit)
        if self._autoscaler is not None and self._context.coordination.chief_is_here:
            self._autoscaler.commit(commit, slices=self._context.slices)

    def switched(self, worker: str, message: SwitchedMessage) -> None:
        """The first old member's word counts: newcomers have waited, and the others say the same."""
        if worker in message.joined or message.number <= self._switched_to:
            return
        self._switched_to = message.number
        if self._autoscaler is not None:
            self._autoscaler.switched(workers=message.workers, pause_ms=message.switch_ms, cause=message.cause)

    @property
    def spare(self) -> int:
        """Workers that are started beyond the wanted number: the successor, until a roster without the slow one is published."""
        roster = self._context.coordination.roster
        if self._slow is not None and (roster is None or self._slow not in roster.workers):
            self._slow = None
        return int(self._slow is not None)

    def ready(self, worker: str) -> None:
        """Somebody waits to be admitted. If it is there to replace a slow worker, that one may go."""
        slow = self._context.workers.get(self._slow or "")
        if self.spare and slow is not None and worker != slow.name:
            slow.status = replace(slow.status, leaving=True)
            self._context.coordination.report(slow.status)

    # ---- what the autoscaler asks for

    @property
    def wanted(self) -> int:
        """On several hosts more may be wanted than there is room for: those that cannot come are not waited for."""
        return min(self._context.coordination.wanted, max(1, self._context.coordination.room))

    @property
    def free(self) -> int | None:
        return max(0, self._context.coordination.room - self.wanted)

    def scale(self, workers: int) -> None:
        self._scale(workers)

    def explain(self, text: str) -> None:
        self._context.recorder.event("autoscale", text)

    # ---- what the straggling watch asks for

    @property
    def shares(self) -> Sequence[tuple[str, int]]:
        roster = self._context.coordination.roster
        if roster is None or not self._context.coordination.settled:
            return ()
        return [(member.worker, len(member.share)) for member in roster.members]

    def set_speeds(self, speeds: Mapping[str, float]) -> None:
        coordination = self._context.coordination
        for name, speed in speeds.items():
            worker = self._context.workers.get(name)
            if worker is not None and name in coordination.statuses:
                worker.status = replace(worker.status, speed=round(speed, 4))
                coordination.report(worker.status)

    def replace_worker(self, worker: str, reason: str) -> None:
        """Another one is started first; this one leaves when that one is ready. Only this agent's own can be replaced by it."""
        if not self.spare and worker in self._context.workers:
            self._slow = worker
            self._balance()

    def explain_straggler(self, text: str) -> None:
        self._context.recorder.event("straggler", text)
