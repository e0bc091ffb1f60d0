"""What the agent does with a job's measured speed: sizes the job where it was asked to, and takes care of slow workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stretto.agent.context import JobContext
from stretto.agent.sizing.autoscaler import Autoscaler
from stretto.agent.sizing.straggler_monitor import StragglerMonitor
from stretto.batching.stragglers import StragglerConfig, parse_mode
from stretto.core.journal import Commit
from stretto.core.messages import SwitchedMessage


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
