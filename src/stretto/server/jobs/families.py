"""How long jobs of the same kind took, and how fast they were: a policy estimates the next one's length from it.

A family is a script of one tenant in one folder, whatever its arguments: the same training run again and again is the
common case, and what its arguments mean is not the server's to guess. A tenant's lengths serve its own jobs only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from statistics import median

from stretto.server.jobs.command import work_of
from stretto.server.jobs.run_progress import Pace, RunProgress
from stretto.server.jobs.state import JobRecord
from stretto.server.models import JobState

Family = tuple[str, str, str]

MOST_FINISHED = 16
"""Jobs of a family that are remembered: the latest, as in the simulator."""
MOST_FAMILIES = 4096


def family(record: JobRecord) -> Family:
    """(tenant, folder, what is run)."""
    work = work_of(record.spec)
    return record.tenant, record.spec.workdir or "", (work.script or work.command or (work.shell,))[0]


@dataclass(slots=True)
class Families:
    """Kept in memory; at a start, the server learns it again from the ended jobs that it keeps."""

    _took: OrderedDict[Family, deque[tuple[float, float]]] = field(default_factory=OrderedDict[Family, deque[tuple[float, float]]])
    """(samples, seconds from the first step to the end) of each."""
    _paces: OrderedDict[Family, Pace] = field(default_factory=OrderedDict[Family, Pace])
    """Of the latest job."""

    def runs(self, record: JobRecord, pace: Pace) -> None:
        """Records the speed of a job that has begun."""
        key = family(record)
        self._paces[key] = pace
        self._paces.move_to_end(key)
        while len(self._paces) > MOST_FAMILIES:
            self._paces.popitem(last=False)

    def pace(self, record: JobRecord) -> Pace | None:
        """Batch and speeds of this job's family."""
        return self._paces.get(family(record))

    def ended(self, record: JobRecord, progress: RunProgress) -> None:
        """Records a job that has ended; only finished jobs count."""
        pace = progress.pace()
        if pace is not None:
            self.runs(record, pace)
        if record.state is not JobState.FINISHED or progress.samples <= 0:
            return
        key = family(record)
        finished = self._took.setdefault(key, deque(maxlen=MOST_FINISHED))
        self._took.move_to_end(key)
        began, ended = record.started_at, record.ended_at
        finished.append((float(progress.samples), ended - began if began is not None and ended is not None else 0.0))
        while len(self._took) > MOST_FAMILIES:
            self._took.popitem(last=False)

    def took(self, record: JobRecord) -> tuple[float, ...]:
        """Samples that finished jobs of this job's family took, oldest first."""
        return tuple(samples for samples, _ in self._took.get(family(record), ()))

    def lasted(self, record: JobRecord) -> float | None:
        """Median training time of this family's jobs; None if unknown."""
        durations = [seconds for _, seconds in self._took.get(family(record), ()) if seconds > 0]
        return median(durations) if durations else None
