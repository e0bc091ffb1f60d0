"""What a dead worker died of, and what follows for the job. No process is touched here."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.agent.workers.failure_policy import Failure, FailureHistory
from stretto.agent.workers.fork_client import describe_exit
from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.core.heartbeat import Activity


@dataclass(frozen=True, slots=True)
class Finding:
    """The event to tell, the reason in words, and the end of the job where it has to be."""

    what: str
    text: str
    why: str
    failure: Failure | None = None


def examine(worker: WorkerHandle, code: int, *, ledger: FailureHistory, started: bool, script: str) -> Finding:
    """A death that the agent did not cause. `started` is whether the job has had a roster."""
    if worker.crash is not None:
        summary = worker.crash.summary
        return Finding("crashed", summary, f"failed with {summary}", ledger.crashed(worker.crash, started=started))
    if code == 0 and not worker.greeted:
        failure = Failure(
            f"{script} ended without calling stretto.join(): a training script becomes a worker of the job with "
            "`job = stretto.join(seed=0)`; see the README for the loop around it"
        )
        return Finding("died", "its script never called stretto.join", "ended without stretto.join", failure)
    exit_ = describe_exit(code)
    pulse = worker.beat.read()
    if pulse.activity is not Activity.SLICE:
        return Finding("died", exit_, f"died with {exit_}")
    place = (pulse.step, pulse.pass_, pulse.slice)
    failure = ledger.died_in(place, worker=worker.name, how=f"the last with {exit_}")
    return Finding("died", f"{exit_} in slice {pulse.slice} of step {pulse.step}", f"died with {exit_}", failure)


def poisoned(worker: WorkerHandle, *, ledger: FailureHistory) -> Failure | None:
    """Of a worker that hung: whether another one did so in the same slice."""
    pulse = worker.beat.read()
    if pulse.activity is not Activity.SLICE:
        return None
    return ledger.died_in((pulse.step, pulse.pass_, pulse.slice), worker=worker.name, how="the last one hung in it")
