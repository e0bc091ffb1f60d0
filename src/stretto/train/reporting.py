"""What a worker tells its agent: commits, switches, evaluations. The agent writes them into the journal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stretto.core.roster import Roster
from stretto.train.entry.failpoints import failpoint
from stretto.train.metrics import Metrics

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader
    from stretto.train.data.step import Step
    from stretto.train.job import Job


class AgentReporter:
    """A worker's words. Those about the whole job are said by one worker a host: every agent keeps a journal of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.last_commit: dict[str, Any] | None = None
        """Said again after a rescue: the chief that had to say it may have died."""
        self.stepped_at = time.monotonic()
        self._own_s = 0.0
        """Seconds that the script has spent between sweeps over its loaders: they are no pause, whatever changes meanwhile."""
        self._left_at: float | None = None
        """When the last sweep ended, between two sweeps."""
        self._ended_at = self._clock()
        """When the last step ended. Pauses are counted from there."""
        self._pauses: dict[int, float] = {}
        """Rosters that this worker has switched to since then, and when the step before them ended."""
        self._metrics = Metrics(job)
        self._order = (-1, -1)
        """The loader and epoch whose order of samples the agent knows of."""

    def say(self, kind: str, **fields: Any) -> None:
        job = self._job
        if job._link is not None:
            job._link.send(kind, **fields)

    @property
    def first_here(self) -> bool:
        """Whether this is the first worker of its agent in the roster; the chief always is."""
        team = self._job._team
        if team.group is None:
            return True
        members = team.roster.members
        agent = members[team.rank].agent
        return next(place for place, member in enumerate(members) if member.agent == agent) == team.rank

    def _clock(self) -> float:
        """Monotonic seconds without the script's own time: stands still between sweeps."""
        return (time.monotonic() if self._left_at is None else self._left_at) - self._own_s

    def sweep_begins(self) -> None:
        if self._left_at is not None:
            self._own_s += time.monotonic() - self._left_at
            self._left_at = None

    def sweep_ended(self) -> None:
        """The script goes on by itself, unless this was an evaluation inside a training step."""
        passes = self._job._passes
        if passes.training is None or passes.left is not None:
            self._left_at = time.monotonic()

    def _step_ended(self) -> None:
        """The first step after a change tells how long it took from the end of the last one before."""
        now = self._clock()
        for number, since in self._pauses.items():
            self.say("resumed", number=number, pause_ms=round((now - since) * 1e3, 3))
        self._pauses.clear()
        self._ended_at = now

    def admitted(self) -> None:
        """This worker is a newcomer, and has finished no step yet."""
        self._ended_at = self._clock()

    def carry_on(self, before: AgentReporter) -> None:
        """This worker ran out of memory in a step, and `before` told of the steps until then."""
        self.last_commit, self._pauses = before.last_commit, before._pauses
        self._own_s, self._left_at, self._ended_at = before._own_s, before._left_at, before._ended_at

    def switched(self, roster: Roster, *, switch_ms: float) -> None:
        """`switch_ms` is what the change itself took: at the boundary, or from the broken exchange to the new roster."""
        job = self._job
        if (roster.base or roster.rescue) and job.worker not in roster.joined:
            self._pauses[roster.number] = self._ended_at
        change = "join" if roster.joined else "leave" if roster.left else "balance"
        cause = "rescue" if roster.rescue else "start" if not roster.base else change
        self.say(
            "switched",
            number=roster.number,
            tick=job._team.seat.tick,
            step=job.step,
            switch_ms=round(switch_ms, 3),
            joined=list(roster.joined),
            left=list(roster.left),
            cause=cause,
            workers=len(roster.members),
        )

    def loader(self, loader: Loader) -> None:
        job = self._job
        if self.first_here:
            self.say(
                "loader",
                loader=loader.number,
                samples=loader.source.size,
                batch=loader.batch,
                slices=loader.slices,
                tail=loader.tail,
                train=loader.train,
                seed=job.seed,
                shuffle=loader.source.shuffle,
            )

    def committed(self, step: Step) -> None:
        """A training step is over: its optimizer has run."""
        job = self._job
        if not step.passes:
            job._check_script()
        now = time.monotonic()
        self.last_commit = {
            "step": step.index,
            "tick": job._team.seat.tick,
            "epoch": step.epoch,
            "loader": step.loader.number,
            "first": step.first,
            "count": step.count,
            "batch": step.loader.batch,
            "roster": job._team.roster.number,
            "workers": job.workers,
            "order": step.order,
            "metrics": step.metrics,
            "step_s": round(now - self.stepped_at, 6),
            **job._planning.committed(step, step_s=now - self.stepped_at),
        }
        self.stepped_at = now
        self._step_ended()
        job.last_metrics = step.metrics
        if self.first_here:
            self.say("commit", **self.last_commit)
            self._metrics.report(step)
        elif self._order != (step.loader.number, step.epoch):
            self.say("order", loader=step.loader.number, epoch=step.epoch, order=step.order)
        self._order = (step.loader.number, step.epoch)
        job.step += 1
        every = int(job.options.get("digest_every") or 0)
        if every and job.step % every == 0:
            step.loader.step += 1
            step.loader.consumed += step.count
            job._passes.digest = [job.step, job.digest()]
            step.loader.step -= 1
            step.loader.consumed -= step.count
        failpoint("committed")

    def epoch_done(self, loader: Loader) -> None:
        self._metrics.epoch_done()
        self.say("epoch", epoch=loader.epoch, loader=loader.number)

    def evaluated(self, step: Step) -> None:
        self._step_ended()
        if not step.passes:
            self._job._check_script()

    def swept(self, loader: Loader) -> None:
        job = self._job
        if self.first_here:
            self.say(
                "eval", loader=loader.number, epoch=job.epoch, step=job.step, samples=loader.source.size, metrics=loader.metrics
            )
