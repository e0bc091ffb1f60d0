"""What was asked of checkpoints: where, how often, how many are kept. Checked before anything is started."""

from __future__ import annotations

import re
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stretto.core.errors import UsageError
from stretto.train.checkpoint.catalog import claim
from stretto.train.checkpoint.storage import open_vault

EVERY = "100"
KEEP = 3
_EVERY = re.compile(r"(\d+)|(\d+(?:\.\d+)?)(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """One run's. `run_id` tells runs of the same name apart: a folder has the checkpoints of one run."""

    url: str
    every_steps: int | None = None
    every_s: float | None = None
    keep: int = KEEP
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def claim(self, run: str) -> None:
        """Raises `UsageError` where the place cannot be written or is another run's."""
        claim(open_vault(self.url), run=run, run_id=self.run_id)

    def for_workers(self, *, run: str, life: int, grace_s: float) -> dict[str, Any]:
        return {**asdict(self), "run": run, "life": life, "grace_s": grace_s}


def parse_checkpoints(url: str | None, *, every: str | None, keep: int) -> Checkpoints | None:
    """From the flags; None where nobody asked."""
    if url is None:
        if every is not None:
            raise UsageError(f"--checkpoint-every {every} says how often, but not where to: add --checkpoint DIR")
        return None
    if keep < 1:
        raise UsageError(f"--keep {keep} is too small: the last complete checkpoint is never deleted, so it is at least 1")
    found = _EVERY.fullmatch(every or EVERY)
    steps = int(found.group(1)) if found and found.group(1) else None
    seconds = float(found.group(2)) * _SECONDS[found.group(3)] if found and found.group(2) else None
    if not steps and not seconds:
        raise UsageError(f"--checkpoint-every {every!r} is neither a number of steps nor a time: write 100, 30s or 5m")
    if not url.strip():
        raise UsageError("--checkpoint is empty: name a folder or a URL")
    where = url if "://" in url else str(Path(url).absolute())
    return Checkpoints(where, steps, seconds, keep)
