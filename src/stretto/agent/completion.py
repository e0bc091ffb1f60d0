"""How a run ends, and its exit code. The first end that is found counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from stretto.agent.workers.failure_policy import Failure
from stretto.core.messages import FinishedMessage

FAILED = 1
INTERRUPTED = 130
"""Ctrl-C: the exit code that shells use."""
STOPPED = 143
"""`stretto stop` and SIGTERM: ended on purpose, but not finished."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The end of a run."""

    state: str
    """`finished`, `failed`, `stopped`, or `left` where the job goes on without this agent."""
    exit_code: int
    error: str | None = None
    traceback: str = ""
    digest: str | None = None
    lost: bool = False
    """Nobody has the state any more: a checkpoint can help."""
    own: bool = False
    """Only this agent has failed: the job's other agents go on."""

    @staticmethod
    def failed(failure: Failure) -> RunOutcome:
        return RunOutcome("failed", failure.exit_code, failure.text, failure.traceback)


class Completion:
    """The agent's `run` waits for `outcome`. `stopping` is the exit code of a requested stop."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[RunOutcome] = asyncio.get_running_loop().create_future()
        self.stopping: int | None = None
        self._finals: dict[str, FinishedMessage] = {}

    @property
    def begun(self) -> bool:
        """No more workers are started."""
        return self.outcome.done() or self.stopping is not None

    def end(self, outcome: RunOutcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def fail(self, failure: Failure | None) -> None:
        if failure is not None:
            self.end(RunOutcome.failed(failure))

    def differ(self, when: str, digests: Mapping[str, str]) -> None:
        listed = ", ".join(f"{name} {value[:16]}" for name, value in sorted(digests.items()))
        self.fail(
            Failure(
                f"the workers' states differ {when}: {listed}. Something in the script depends on the worker (its "
                "rank, its own random numbers, time, a value read from outside): make it alike everywhere"
            )
        )

    def finished(self, worker: str, message: FinishedMessage) -> None:
        """A worker's script has ended."""
        self._finals[worker] = message

    @property
    def hint(self) -> str:
        """Which variable of the script probably made it end on one worker alone, as that worker's script reads."""
        return next((final.hint for final in self._finals.values() if final.hint), "")

    def conclude(self, elsewhere: Mapping[str, str] | None = None) -> None:
        """Every worker has ended, at the end of its script or where it was stopped: compares their final states. `elsewhere` has a
        worker for each digest that other hosts report."""
        digests = {name: final.digest for name, final in self._finals.items() if final.digest}
        digests |= {worker: digest for digest, worker in (elsewhere or {}).items()}
        if len(set(digests.values())) > 1:
            return self.differ("at the end", digests)
        digest = next(iter(digests.values()), None)
        if self.stopping is not None and (not self._finals or any(final.stopped for final in self._finals.values())):
            return self.end(RunOutcome("stopped", self.stopping, digest=digest))
        self.end(RunOutcome("finished", 0, digest=digest))
