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


class Telling:
    """A worker's words. Those about the whole job are said by one worker a host: every agent keeps a journal of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.last_commit: dict[str, Any] | None = None
        """Said again after a rescue: the chief that had to say it may have died."""
        self.stepped_at = time.monotonic()
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

    def switched(self, roster: Roster, pause_ms: float) -> None:
        job = self._job
        change = "join" if roster.joined else "leave" if roster.left else "balance"
        cause = "rescue" if roster.rescue else "start" if not roster.base else change
        self.say("switched", number=roster.number, tick=job._team.seat.tick, step=job.step, pause_ms=round(pause_ms, 3),
                  joined=list(roster.joined), left=list(roster.left), cause=cause, workers=len(roster.members))

    def loader(self, loader: Loader) -> None:
        job = self._job
        if self.first_here:
            self.say("loader", loader=loader.number, samples=loader.source.size, batch=loader.batch, slices=loader.slices,
                      tail=loader.tail, train=loader.train, seed=job.seed, shuffle=loader.source.shuffle)

    def committed(self, step: Step) -> None:
        """A training step is over: its optimizer has run."""
        job = self._job
        if not step.passes:
            job._check_script()
        now = time.monotonic()
        self.last_commit = {
            "step": step.index, "tick": job._team.seat.tick, "epoch": step.epoch, "loader": step.loader.number,
            "first": step.first, "count": step.count, "batch": step.loader.batch, "roster": job._team.roster.number,
            "workers": job.workers, "order": step.order, "metrics": step.metrics, "step_s": round(now - self.stepped_at, 6),
            **job._planning.committed(step, step_s=now - self.stepped_at),
        }
        self.stepped_at = now
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
        if not step.passes:
            self._job._check_script()

    def swept(self, loader: Loader) -> None:
        job = self._job
        if self.first_here:
            self.say("eval", loader=loader.number, epoch=job.epoch, step=job.step, samples=loader.source.size,
                      metrics=loader.metrics)
