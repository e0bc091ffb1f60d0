"""The list of jobs as it is sent: one line of JSON a job, written once for everybody who looks.

Fifty open pages and their streams show the same two hundred jobs several times a second. A line changes when its job has an
event, commits a step, reports something, or is given another reason; until then it is handed out as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.server.api import views
from stretto.server.api.sse import dump
from stretto.server.jobs.job_store import JobStore
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import Record

MOST_LINES = 10_000
"""About a kilobyte each; with more jobs than this they are written again."""


@dataclass(slots=True)
class Lines:
    book: JobStore
    reason: Callable[[Record], str]
    _written: dict[str, tuple[tuple[object, ...], str]] = field(default_factory=dict[str, tuple[tuple[object, ...], str]])

    def of(self, job: str, tenant: str | None) -> str | None:
        """The line of a job, or None if it is gone or this tenant must not see it."""
        record = self.book.records.get(job)
        if record is None or not views.seen(record, tenant):
            return None
        known, reason = self.book.known[job], self.reason(record)
        state = _state(record, known, reason)
        found = self._written.get(job)
        if found is None or found[0] != state:
            if len(self._written) >= MOST_LINES:
                self._written.clear()
            found = self._written[job] = state, dump(views.summary(record, known, reason=reason))
        return found[1]


def _state(record: Record, known: RunProgress, reason: str) -> tuple[object, ...]:
    """What a line is made of, as far as it changes."""
    return record.version, known.life, known.step, known.at, known.loss, known.report, reason
