"""Runs a launched script, and reports its end to the agent."""

from __future__ import annotations

import os
import runpy
import socket
import sys
import traceback
from collections.abc import Sequence

from stretto.core.errors import UsageError
from stretto.core.messages import TO_AGENT, CrashMessage, EndedMessage, LeftMessage, MisplacedMessage, ToAgent
from stretto.train.entry import join as jobs
from stretto.train.membership import Left, Misplaced
from stretto.train.oom_retry import MOST, carry
from stretto.train.step_runner import Stopped


def run_script(path: str, argv: Sequence[str]) -> int:
    """Runs the script as `python path argv...` would. The exit code."""
    sys.argv = [path, *argv]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        _run(path)
        _finished()
    except Stopped:
        _finished()
    except Misplaced as error:
        print(f"stretto: this worker leaves the job: {error.text}", file=sys.stderr, flush=True)
        _send(MisplacedMessage(text=error.text))
    except Left:
        _send(LeftMessage())
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        print(end.code if not isinstance(end.code, int) else f"the script ended with exit code {code}", file=sys.stderr)
        _send(CrashMessage(tick=_tick(), type="SystemExit", text=str(end.code), traceback=""))
        return code
    except BaseException as error:
        if _failed_again(path, error):
            return 1
        report = f"{_line(path, error)}{type(error).__name__}: {error}" if isinstance(error, UsageError) else traceback.format_exc()
        hint = _new_chief(error)
        print(f"{report}{hint}", file=sys.stderr, flush=True)
        _send(
            CrashMessage(
                tick=_tick(),
                type=type(error).__name__,
                text=f"{error}{hint}",
                traceback=traceback.format_exc(),
                usage=isinstance(error, UsageError),
            )
        )
        return 1
    return 0


def _run(path: str) -> None:
    """Runs the script, again from its top where it ran out of memory and can go on with smaller parts."""
    for _ in range(MOST):
        try:
            runpy.run_path(path, run_name="__main__")
            return
        except SystemExit as end:
            if isinstance(end, Left) or end.code not in (None, 0):
                raise
            return  # exit code 0, like the end of the file
        except BaseException as error:
            carried = carry(jobs.current(), error)
            if carried is None:
                raise
        jobs.carry_on(carried)
    runpy.run_path(path, run_name="__main__")


def _failed_again(path: str, error: BaseException) -> bool:
    """Whether a newcomer's script failed in code that the job has behind it: the newcomer goes, the job goes on."""
    session = jobs.current()
    if session is None or session.runner is None or not session.catching_up or isinstance(error, UsageError):
        return False
    newcomer = session.runner.state_sync.newcomer
    text = (
        f"its script failed in code that has run before and runs again on a worker that joins or resumes: "
        f"{_line(path, error)}{type(error).__name__}: {error}. Make it harmless there, for instance by an if"
    )
    if newcomer:
        traceback.print_exc()
    print(f"stretto: {text}", file=sys.stderr, flush=True)
    if not newcomer:
        return False
    _send(MisplacedMessage(text=text))
    return True


def _new_chief(error: BaseException) -> str:
    """A hint for the worker that has taken the chief's place in the middle of its script, and lacks what the chief had made."""
    session = jobs.current()
    if not isinstance(error, NameError | AttributeError) or session is None or session.membership.group is None:
        return ""
    if not session.membership.chief or session.membership.early.chief:
        return ""
    return (
        " (this worker became chief when the one before it went, so what `if job.chief:` makes at the top of the script is not "
        "here: make it where it is used, for instance `log = log or open(path, 'a')`)"
    )


def _line(path: str, error: BaseException) -> str:
    """Where the script was: a mistake in its use of stretto needs no more of the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{path}:{lines[-1]}: " if lines else ""


def _tick() -> int | None:
    session = jobs.current()
    return session.membership.seat.tick if session is not None else None


def _finished() -> None:
    session = jobs.current()
    if session is None:
        return
    if session.closed:
        _send(EndedMessage())
        return
    session.finish()
    if session.process.channel is not None:
        session.process.channel.close()


def _send(message: ToAgent) -> None:
    """Sends the last message to the agent, also from a script that never joined."""
    session = jobs.current()
    channel = session.process.channel if session is not None else None
    if channel is not None:
        channel.close()
        channel.send(message)
    elif "STRETTO_LINK" in os.environ:
        with socket.socket(fileno=os.dup(int(os.environ["STRETTO_LINK"]))) as link:
            link.sendall(TO_AGENT.encode(message))
