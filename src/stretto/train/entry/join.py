"""How a process becomes a worker: `stretto.join`. A process has one job at a time, and a launched worker only one at all."""

from __future__ import annotations

import json
import operator
import os
import sys
import traceback
from types import TracebackType

import torch

from stretto.core.errors import ScriptError, UsageError
from stretto.core.heartbeat import Heartbeat
from stretto.core.messages import HelloMessage
from stretto.core.version import VERSION
from stretto.train.entry.agent_channel import AgentChannel, NullHeartbeat
from stretto.train.entry.fingerprint import machine, prepare
from stretto.train.job import Job
from stretto.train.membership import Membership
from stretto.train.oom_retry import OomCarryover
from stretto.train.rng import seed_all
from stretto.train.script_checks.variables import LIBRARIES, script_frames
from stretto.train.session import TrainingSession, WorkerOptions, WorkerProcess

SEEDED = 1 << 32
"""Seeds that scripts choose are smaller; those that torch draws for itself have 53 bits."""
_shown_before = sys.excepthook
_seeded = False
"""Whether a job of this process has seeded its random numbers."""
_session: TrainingSession | None = None
_carried: OomCarryover | None = None


def join(seed: int = 0, *, threads: int | None = None) -> Job:
    """Makes this process a worker of the job that launched it, or a job of its own under plain `python`.

    Close the job before the next one: `with stretto.join(...) as job:` or `job.close()`. In a notebook the next `join` does it.
    `seed` decides the order of samples and all random numbers, so it is the same number on every worker.
    """
    global _carried, _seeded
    sys.excepthook = _show
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ScriptError(
            f"stretto.join(seed={seed!r}): a job needs a whole number as its seed, the same on every worker. It "
            "decides the order of samples and all random numbers; write stretto.join(seed=0)"
        )
    seed = operator.index(seed)
    if _carried is not None:
        carried, _carried = _carried, None
        prepare(threads, launched_with=carried.process.options.get("threads"))
        return _begin(TrainingSession(carried.process, seed=seed, changed=[], carried=carried))
    if _session is not None:
        _close_earlier(_session)
    _check_models()
    options: WorkerOptions = json.loads(os.environ.get("STRETTO_OPTIONS", "{}"))
    changed = prepare(threads, launched_with=options.get("threads"))
    process = _worker_process(options)
    job = _begin(TrainingSession(process, seed=seed, changed=changed))
    if process.channel is not None:
        process.channel.start(process.membership.handle)
        process.channel.send(
            HelloMessage(
                pid=os.getpid(),
                address=process.membership.address,
                fingerprint=machine(),
                version=VERSION,
                python=sys.version.split()[0],
            )
        )
    _seeded = True
    return job


def _begin(session: TrainingSession) -> Job:
    """The session becomes that of this process."""
    global _session
    _session = session
    session.resources.callback(_forget, session)
    seed_all(session.seed)
    return Job(session)


def _worker_process(options: WorkerOptions) -> WorkerProcess:
    """This process as the agent has started it, or alone under plain `python`."""
    channel: AgentChannel | None = None
    heartbeat: Heartbeat | NullHeartbeat = NullHeartbeat()
    if "STRETTO_LINK" in os.environ:
        real = Heartbeat(int(os.environ["STRETTO_BEAT"])) if "STRETTO_BEAT" in os.environ else None
        heartbeat = real or heartbeat
        channel = AgentChannel(int(os.environ["STRETTO_LINK"]), real)
    worker = os.environ.get("STRETTO_WORKER", "alone")
    membership = Membership(worker, channel=channel, host=options.get("host", "127.0.0.1"))
    return WorkerProcess(worker, options, channel, heartbeat, membership)


def _check_models() -> None:
    """Refuses a model that was made before: torch's first seed differs from process to process. An earlier job of this process has
    seeded torch, and its models may still be around."""
    if _seeded or torch.initial_seed() <= SEEDED:
        return
    for frame in script_frames():
        for name, value in {**frame.f_globals, **frame.f_locals}.items():
            if isinstance(value, torch.nn.Module) and any(parameter.requires_grad for parameter in value.parameters()):
                raise ScriptError(
                    f"`{name}` was made before stretto.join: its first weights come from a seed that is another one "
                    "in every process, so no two runs would be alike; call stretto.join(seed=…) first, or "
                    "torch.manual_seed(…) before the model is made"
                )


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What an uncaught error looks like under plain `python`: a mistake in the use of stretto needs no traceback."""
    if not isinstance(error, UsageError):
        return _shown_before(kind, error, trace)
    lines = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(LIBRARIES)]
    where = f"{lines[-1].filename}:{lines[-1].lineno}: " if lines else ""
    print(f"{where}{kind.__name__}: {error}", file=sys.stderr)


def _close_earlier(session: TrainingSession) -> None:
    """A second `join`: a cell that runs again ends the job before it, a script has to say so."""
    if session.process.channel is not None:
        raise ScriptError(
            "stretto.join was called a second time in a launched script: `stretto run` trains one job; start the "
            "second one with a `stretto run` of its own, or run this script with plain `python`"
        )
    if not _interactive():
        raise ScriptError(
            "stretto.join was called a second time while the first job is open: a process has one job at a time; end "
            "the first with job.close(), or write `with stretto.join(...) as job:` around it"
        )
    session.close()
    print("stretto: closed the job that this session had joined before", file=sys.stderr)


def _interactive() -> bool:
    """Whether somebody types: Python's prompt, IPython and Jupyter set `sys.ps1`."""
    return hasattr(sys, "ps1")


def _forget(session: TrainingSession) -> None:
    """The job is over. A launched worker keeps it: it cannot join again."""
    global _session
    if sys.excepthook is _show:
        sys.excepthook = _shown_before
    if _session is session and session.process.channel is None:
        _session = None


def carry_on(carried: OomCarryover) -> None:
    """Lets the next `join` of this process go on with this."""
    global _session, _carried
    _session, _carried = None, carried


def current() -> TrainingSession | None:
    """The session of the job that this process has joined."""
    return _session
