"""How a run ended, and its exit code."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.agent.workers.failure_policy import Failure

FAILED = 1
INTERRUPTED = 130
"""Ctrl-C, as a shell would say it."""
STOPPED = 143
"""`stretto stop` and SIGTERM: ended on purpose, but not finished."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
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
