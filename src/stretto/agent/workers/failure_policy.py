"""Whose fault is it: the machine's, or the script's? Pure.

A worker that dies is replaced. But what kills every worker in the same way will kill the next one too: such a job
fails, with the traceback, and does not take the rest with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
    """The library itself refused what the script or the call asks for: every worker would hear the same."""

    @property
    def summary(self) -> str:
        if self.usage and self.text:
            return self.text  # our own words: the type would say nothing more
        return f"{self.type}: {self.text}" if self.text else self.type


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the whole job fails."""

    text: str
    traceback: str = ""
    exit_code: int = 1


@dataclass(slots=True)
class FailureHistory:
    """Remembers crashes and the slices in which workers died. Bounded by the restart budget of the job."""

    crashes: list[Crash] = field(default_factory=list)
    deaths: dict[Place, list[str]] = field(default_factory=dict)

    def crashed(self, crash: Crash, *, started: bool) -> Failure | None:
        """`started` is whether the job has had a roster: before that, an exception is the script's own."""
        twins = [one for one in self.crashes if _alike(one, crash) and one.worker != crash.worker]
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


def _alike(one: Crash, other: Crash) -> bool:
    return (one.tick, one.type, one.text) == (other.tick, other.type, other.text)


def exit_code_of(crash: Crash | None) -> int:
    """`sys.exit(3)` everywhere is a job that exits with 3."""
    if crash is not None and crash.type == "SystemExit" and crash.text.isdigit():
        return int(crash.text) or 1
    return 1
