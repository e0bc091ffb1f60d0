"""Slow workers: slice times in, new speeds or a replacement out. The judging is in `stretto.batching.stragglers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from stretto.batching.stragglers import Keep, Rebalance, Replace, StragglerConfig, StragglerState, judge, observe
from stretto.core.journal import Commit

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
