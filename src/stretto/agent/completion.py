"""The end of a job: the first one that is found counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from stretto.agent.outcome import RunOutcome
from stretto.agent.workers.failure_policy import Failure
from stretto.core.messages import FinishedMessage


class Completion:
    """Waited for by the agent's `run`. `stopping` is the exit code of a stop that was asked for."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[RunOutcome] = asyncio.get_running_loop().create_future()
        self.stopping: int | None = None
        self._finals: dict[str, FinishedMessage] = {}

    @property
    def begun(self) -> bool:
        """Nobody is started any more."""
        return self.outcome.done() or self.stopping is not None

    def end(self, outcome: RunOutcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def fail(self, failure: Failure | None) -> None:
        if failure is not None:
            self.end(RunOutcome.failed(failure))

    def differ(self, when: str, digests: Mapping[str, str]) -> None:
        told = ", ".join(f"{name} {value[:16]}" for name, value in sorted(digests.items()))
        self.fail(
            Failure(
                f"the workers' states differ {when}: {told}. Something in the script depends on the worker (its "
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

    def conclude(self, told: Mapping[str, str] | None = None) -> None:
        """Everybody has ended: with the same state, at the end or where a stop was asked for. `told` is what other hosts say:
        for each digest a worker."""
        digests = {name: final.digest for name, final in self._finals.items() if final.digest}
        digests |= {worker: digest for digest, worker in (told or {}).items()}
        if len(set(digests.values())) > 1:
            return self.differ("at the end", digests)
        digest = next(iter(digests.values()), None)
        if self.stopping is not None and (not self._finals or any(final.stopped for final in self._finals.values())):
            return self.end(RunOutcome("stopped", self.stopping, digest=digest))
        self.end(RunOutcome("finished", 0, digest=digest))
