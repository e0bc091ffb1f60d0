"""How a process becomes a worker: `stretto.join`, once in a process, and again only where its script is run again."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from stretto.core.beat import Beat
from stretto.core.errors import ScriptError
from stretto.core.version import VERSION
from stretto.train.entry.fingerprint import fingerprint, prepare
from stretto.train.entry.link import Link, Quiet
from stretto.train.job import Job
from stretto.train.memory import Carried
from stretto.train.randomness import seed_all

_job: Job | None = None
_carried: Carried | None = None


def join(seed: int = 0, *, threads: int | None = None) -> Job:
    """Makes this process a worker of the job that launched it, or a job of its own under plain `python`."""
    global _job, _carried
    if _carried is not None:
        old, carried, _carried = _carried.job, _carried, None
        prepare(int(old.options.get("threads") or threads or 1))
        _job = Job(seed=seed, options=old.options, worker=old.worker, link=old._link, beat=old._beat, carried=carried)
        seed_all(seed)
        return _job
    if _job is not None:
        raise ScriptError("stretto.join was called a second time: a process is one worker of one job; keep the first job object")
    options: dict[str, Any] = json.loads(os.environ.get("STRETTO_OPTIONS", "{}"))
    prepare(int(options.get("threads") or threads or 1))
    link: Link | None = None
    beat: Beat | Quiet = Quiet()
    if "STRETTO_LINK" in os.environ:
        real = Beat(int(os.environ["STRETTO_BEAT"])) if "STRETTO_BEAT" in os.environ else None
        beat = real or beat
        link = Link(int(os.environ["STRETTO_LINK"]), real)
    worker = os.environ.get("STRETTO_WORKER", "alone")
    _job = Job(seed=seed, options=options, worker=worker, link=link, beat=beat)
    if link is not None:
        link.start(_job._team.hear)
        link.send("hello", pid=os.getpid(), address=list(_job._team.address), fingerprint=fingerprint(),
                  version=VERSION, python=sys.version.split()[0])
    seed_all(seed)
    return _job


def carry_on(carried: Carried) -> None:
    """The next `join` of this process takes this over."""
    global _job, _carried
    _job, _carried = None, carried


def current() -> Job | None:
    """The job that this process has joined."""
    return _job
