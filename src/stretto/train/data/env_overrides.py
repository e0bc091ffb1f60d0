"""What a job's starter asks of its training loader, where the script leaves it open.

`STRETTO_SLICES` and `STRETTO_BATCH` come with a job file's `elastic.slices` and `elastic.batch`. They are read wherever the script
runs, also under plain `python`: with the same two in its environment it gives the same bits.
"""

from __future__ import annotations

import os

from stretto.batching.batch_policies import Adaptive, PerWorker, Policy
from stretto.core.errors import ScriptError

MOST_SLICES = 4096
ROOM = 16
"""An adaptive batch whose bound nobody has said grows to so many times the script's own at most."""


def asked_slices(script: int | None) -> int | None:
    """The number of slices: the script's, or what was asked for; None if neither says one."""
    text = os.environ.get("STRETTO_SLICES", "").strip()
    if not text:
        return script
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_SLICES:
        raise ScriptError(f"STRETTO_SLICES={text!r} is not a number of slices: use 1 to {MOST_SLICES}, or leave it out")
    if script is not None and script != int(text):
        raise ScriptError(
            f"slices={script} in job.loader(...), and the job was started with {text}: give only one of them "
            "(elastic.slices of the job file, STRETTO_SLICES)"
        )
    return int(text)


def asked_batch(script: int | Policy, *, slices: int, samples: int) -> int | Policy:
    """The training batch: a policy of the script's own counts; a plain number is fixed unless something else was asked for."""
    kind = os.environ.get("STRETTO_BATCH", "").strip()
    if isinstance(script, bool) or not isinstance(script, int) or kind in ("", "fixed"):
        return script
    if kind == "linear":
        return PerWorker(script)
    if kind == "adaptive":
        return Adaptive(start=script, at_most=max(script, min(ROOM * script, samples // slices * slices)))
    raise ScriptError(f"STRETTO_BATCH={kind!r} is unknown: use fixed, linear or adaptive")
