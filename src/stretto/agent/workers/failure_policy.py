"""Why a worker died or was refused, and whether the job survives it. Pure.

A worker that dies is replaced. But what kills every worker in the same way will kill the next one too: such a job fails, with the
traceback, before it loses the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core.heartbeat import Activity, HeartbeatSample
from stretto.core.source import CODE_OF

Place = tuple[int, int, int]
"""Step, pass, slice."""


@dataclass(frozen=True, slots=True)
class Crash:
    """An exception that ended a worker's script."""

    worker: str
    tick: int | None
    """None before the worker had state."""
    type: str
    text: str
    traceback: str = ""
    usage: bool = False
    """The library itself refused what the script or the call asks for: it would refuse every worker."""

    @property
    def summary(self) -> str:
        if self.usage and self.text:
            return self.text  # our own message: the type adds nothing
        return f"{self.type}: {self.text}" if self.text else self.type


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the whole job fails."""

    text: str
    traceback: str = ""
    exit_code: int = 1


@dataclass(frozen=True, slots=True)
class Death:
    """A death that the agent did not cause."""

    worker: str
    exit: str
    """The exit code or signal, in words."""
    succeeded: bool
    """The exit code was 0."""
    crash: Crash | None
    joined: bool
    """The script had called stretto.join."""
    heartbeat: HeartbeatSample


@dataclass(frozen=True, slots=True)
class Finding:
    """The event to record, the reason in words, and the failure of the job where it cannot go on."""

    what: str
    text: str
    why: str
    failure: Failure | None = None


@dataclass(slots=True)
class FailureHistory:
    """Remembers crashes and the slices in which workers died. Bounded by the restart budget of the job."""

    crashes: list[Crash] = field(default_factory=list["Crash"])
    deaths: dict[Place, list[str]] = field(default_factory=dict["Place", list[str]])

    def explain(self, death: Death, *, started: bool, script: str) -> Finding:
        """`started` is whether the job has had a roster."""
        if death.crash is not None:
            summary = death.crash.summary
            return Finding("crashed", summary, f"failed with {summary}", self.crashed(death.crash, started=started))
        if death.succeeded and not death.joined:
            failure = Failure(
                f"{script} ended without calling stretto.join(): a training script becomes a worker of the job with "
                "`job = stretto.join(seed=0)`; see the README for the loop around it"
            )
            return Finding("died", "its script never called stretto.join", "ended without stretto.join", failure)
        beat = death.heartbeat
        if beat.activity is not Activity.SLICE:
            return Finding("died", death.exit, f"died with {death.exit}")
        place = (beat.step, beat.pass_, beat.slice)
        failure = self.died_in(place, worker=death.worker, how=f"the last with {death.exit}")
        return Finding("died", f"{death.exit} in slice {beat.slice} of step {beat.step}", f"died with {death.exit}", failure)

    def hung(self, worker: str, beat: HeartbeatSample) -> Failure | None:
        """A worker hung: the job fails if another one did so in the same slice."""
        if beat.activity is not Activity.SLICE:
            return None
        return self.died_in((beat.step, beat.pass_, beat.slice), worker=worker, how="the last one hung in it")

    def crashed(self, crash: Crash, *, started: bool) -> Failure | None:
        """`started` is whether the job has had a roster: before that, an exception is the script's own."""
        twins = [other for other in self.crashes if _alike(other, crash) and other.worker != crash.worker]
        self.crashes.append(crash)
        if not started:
            return Failure(
                f"the script failed at its start, in worker {crash.worker}: {crash.summary}",
                crash.traceback,
                exit_code=exit_code_of(crash),
            )
        if crash.usage:
            return Failure(crash.summary, crash.traceback)
        if not twins:
            return None
        where = f"after {crash.tick} exchanges" if crash.tick is not None else "at its start"
        return Failure(
            f"the script failed in the same way in workers {twins[0].worker} and {crash.worker}, {where}: {crash.summary}",
            crash.traceback,
            exit_code=exit_code_of(crash),
        )

    def died_in(self, place: Place, *, worker: str, how: str) -> Failure | None:
        """A worker died or hung while it computed a slice, without an exception to show."""
        killed = self.deaths.setdefault(place, [])
        if worker not in killed:
            killed.append(worker)
        if len(killed) < 2:
            return None
        step, pass_, slice_ = place
        return Failure(
            f"slice {slice_} of step {step} (pass {pass_}) is poison: it has killed workers "
            f"{' and '.join(killed)} ({how}); the job is stopped before it kills the rest"
        )


def _alike(first: Crash, second: Crash) -> bool:
    return (first.tick, first.type, first.text) == (second.tick, second.type, second.text)


def exit_code_of(crash: Crash | None) -> int:
    """`sys.exit(3)` everywhere is a job that exits with 3."""
    if crash is not None and crash.type == "SystemExit" and crash.text.isdigit():
        return int(crash.text) or 1
    return 1


MISSING = "missing"
SHOWN = 5
"""Differences that a message lists."""


def differences(values: Mapping[str, object], others: Mapping[str, object], *, worker: str, of: str) -> list[str]:
    """`torch.get_num_threads() is 2 on w1 and 1 on w0`, for everything that differs."""
    return [
        f"{name} is {values.get(name, MISSING)} on {worker} and {others.get(name, MISSING)} on {of}"
        for name in dict.fromkeys((*others, *values))
        if values.get(name) != others.get(name)
    ]


def listed(differing: list[str]) -> str:
    """The first few of them."""
    rest = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return "; ".join(differing[:SHOWN]) + rest


def remedy(differing: list[str]) -> str:
    """How to fix terms that differ."""
    if any("seed=" in difference for difference in differing):
        return "Give stretto.join a seed that is the same on every worker, such as stretto.join(seed=0)"
    if all(difference.startswith(CODE_OF) for difference in differing):
        return (
            "The file was changed after the job began: whoever joins would train with another script. Put it back as it was, "
            "or start a new run with it"
        )
    if any(difference.startswith("dataset") for difference in differing):
        return (
            "What is drawn before stretto.join is another one in every process: call random_split and the like after it, or "
            "give them a generator with a seed"
        )
    return "Every worker must run the same script with the same arguments and data"
