"""Runs policies safely.

A policy is a user's code. It runs in a process of its own that keeps nothing between decisions but the policy's
memory: one that raises, answers with nonsense or takes too long costs that process and an alarm, never the server.
Values go there pickled (from the server to its own child only) and come back as JSON, which is checked again here.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.core.errors import PolicyError
from stretto.scheduling import registry
from stretto.scheduling.pipeline import PipelineSettings, verify
from stretto.scheduling.types import Allocation, ClusterNode, Placement, SchedulableJob
from stretto.server.jobs.run_progress import Pace

MOST_ANSWER = 64 << 20
READY = b"ready\n"
MODULE = "stretto.server.decisions.policy_process"
START_S = 120.0
"""Time for imports, on a very busy machine."""


def names() -> dict[str, str]:
    """Every policy and the first line of what its file says about it."""
    return {name: registry.summary(name) for name in registry.names()}


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """The input of a decision."""

    policy: str
    jobs: Sequence[SchedulableJob]
    nodes: Sequence[ClusterNode]
    places: Mapping[str, Placement]
    """The present placements, before the pipeline's first step."""
    time_s: float
    paces: Mapping[str, Pace] = field(default_factory=dict[str, Pace])
    """Batch and speeds, for jobs that report no model of their own."""
    settings: PipelineSettings = field(default_factory=PipelineSettings)

    def current(self, memory: object = None) -> Allocation:
        return Allocation(dict(self.places), memory=memory)


@dataclass(frozen=True, slots=True)
class Answer:
    """A checked answer of a policy."""

    places: Mapping[str, Placement]
    reasons: Mapping[str, str]
    shown: Mapping[str, Placement] = field(default_factory=dict[str, Placement])
    """The placements that the policy was shown as the present ones."""


class Runner:
    """A child process that decides. One decision at a time; started again after a failure."""

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._child: asyncio.subprocess.Process | None = None

    async def decide(self, snapshot: PolicyInput) -> Answer:
        """The policy's answer, checked. `PolicyError` if there is none in time."""
        try:
            child = await self._ready()
            line = await asyncio.wait_for(self._exchange(child, snapshot), self.timeout_s)
        except TimeoutError as error:
            await self.close()
            raise PolicyError(f"policy '{snapshot.policy}' has not answered within {self.timeout_s:g} s") from error
        except (OSError, EOFError, asyncio.IncompleteReadError, ValueError) as error:
            await self.close()
            raise PolicyError(f"policy '{snapshot.policy}' has ended its process ({type(error).__name__})") from error
        return check(snapshot, line)

    async def _ready(self) -> asyncio.subprocess.Process:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                MODULE,
                str(self.timeout_s),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MOST_ANSWER,
                start_new_session=True,
            )
            assert self._child.stdout is not None
            if await asyncio.wait_for(self._child.stdout.readline(), START_S) != READY:
                raise EOFError
        return self._child

    async def _exchange(self, child: asyncio.subprocess.Process, snapshot: PolicyInput) -> bytes:
        assert child.stdin is not None
        assert child.stdout is not None
        data = await asyncio.to_thread(pickle.dumps, snapshot)
        child.stdin.write(struct.pack("<Q", len(data)) + data)
        await child.stdin.drain()
        line = await child.stdout.readline()
        if not line:
            raise EOFError
        return line

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()


def check(snapshot: PolicyInput, line: bytes) -> Answer:
    """The answer in a line of the policy's process, with the pipeline's check applied again."""
    try:
        answer = json.loads(line)
        if "error" in answer:
            raise PolicyError(f"policy '{snapshot.policy}' has failed: {str(answer['error'])[:500]}")
        if "refused" in answer:
            raise PolicyError(f"policy '{snapshot.policy}' was refused: {str(answer['refused'])[:500]}")
        places, shown = _placements(answer["places"]), _placements(answer.get("shown", {}))
        reasons = {str(job): str(text)[:500] for job, text in answer["reasons"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolicyError(f"policy '{snapshot.policy}' has given an answer that cannot be read: {error!r}") from error
    try:
        verify(snapshot.jobs, snapshot.nodes, snapshot.current(), Allocation(shown), Allocation(places))
    except PolicyError as error:
        raise PolicyError(f"policy '{snapshot.policy}' was refused: {error}") from None
    return Answer(places, reasons, shown)


def _placements(document: Mapping[str, Sequence[tuple[str, int]]]) -> dict[str, Placement]:
    return {str(job): tuple((str(node), int(count)) for node, count in placement) for job, placement in document.items()}
