"""A whole run on one machine: folder, fork server, control port, signals, result."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping
from typing import Protocol

from stretto.agent.attempts import Attempt, Attempts, RunLock, later
from stretto.agent.completion import FAILED, RunOutcome
from stretto.agent.control_server import ControlServer
from stretto.agent.hosts.peer_endpoint import PeerEndpoint, enter
from stretto.agent.options import RunOptions
from stretto.agent.records.recorder import Recorder, RunObserver, Silent
from stretto.agent.records.run_folder import RunFolder, create, discard, write_json
from stretto.agent.records.tensorboard import open_board
from stretto.agent.restart.restarter import Restarter
from stretto.core.errors import UsageError
from stretto.core.journal import End
from stretto.core.json_types import JsonObject, to_int
from stretto.core.version import VERSION


def open_run(options: RunOptions) -> RunFolder:
    """Checks the options and makes the run's folder. Reports every mistake that the user can still correct."""
    options.validate()
    folder = _folder(options)
    if options.checkpoints is not None and options.shared is None:
        try:
            options.checkpoints.claim(folder.name)
        except UsageError:
            discard(folder)
            raise
    write_json(folder.request, {"name": folder.name, **options.to_dict(), "created": time.time(), "version": VERSION})
    return folder


def _folder(options: RunOptions) -> RunFolder:
    """Hosts may share a disk: each has a folder of its own, named after the job and the host."""
    if options.shared is None or options.name is not None:
        return create(options.runs, name=options.name, script=options.script)
    return create(options.runs, name=None, script="", stem=f"{options.shared.job}.{options.shared.label}")


def run(options: RunOptions, folder: RunFolder, *, observer: RunObserver | None = None, life: Attempt | None = None) -> RunOutcome:
    """Runs the job to its end, in the foreground."""
    return asyncio.run(run_async(options, folder, observer=observer or Silent(), life=life))


async def run_async(options: RunOptions, folder: RunFolder, *, observer: RunObserver, life: Attempt | None = None) -> RunOutcome:
    began = time.monotonic()
    with RunLock(folder):
        endpoint: PeerEndpoint | None = None
        if options.shared is not None:
            endpoint, options = await enter(options, folder)
        recorder = Recorder(folder, observer=observer)
        if endpoint is not None and endpoint.joined.life > 1:
            life = await later(endpoint.joined.life, options, recorder)
        attempts = Attempts(
            options,
            folder,
            recorder,
            life or Attempt(),
            joined=endpoint.joined if endpoint else None,
            card=endpoint.card if endpoint else None,
        )
        verbs = ControlVerbs(attempts)
        control = ControlServer(folder, handle=verbs.handle)
        if endpoint is not None:
            endpoint.answer_with(verbs.handle)
        try:
            await attempts.start_forks()
            if options.tensorboard:
                recorder.board = open_board(folder.path / "tensorboard")
            await control.start()
            with _signals(attempts):
                outcome = await attempts.run()
        finally:
            await control.close()
        outcome = _conclude(outcome, attempts.supervisor, began=began)
        if endpoint is not None:
            await endpoint.close(outcome)
        return outcome


async def run_restarting(options: RunOptions, folder: RunFolder, *, observer: RunObserver) -> RunOutcome:
    """Runs an ordinary torch.distributed script in restart mode."""
    began = time.monotonic()
    with RunLock(folder):
        restarter = Restarter(options, folder, Recorder(folder, observer=observer))
        control = ControlServer(folder, handle=ControlVerbs(restarter).handle)
        try:
            await control.start()
            with _signals(restarter):
                outcome = await restarter.run()
        finally:
            await control.close()
        return _conclude(outcome, restarter, began=began)


class Controllable(Protocol):
    """What signals and the control port need: a `Supervisor` or a `Restarter`."""

    options: RunOptions
    folder: RunFolder
    recorder: Recorder

    @property
    def mixed(self) -> bool: ...

    @property
    def restarts(self) -> int: ...

    def stop(self, *, now: bool) -> None: ...

    def quit(self, *, now: bool, interrupted: bool = False) -> None: ...

    def scale(self, workers: int) -> None: ...

    def drain(self, agent: str) -> dict[str, object]: ...

    def status(self) -> dict[str, object]: ...


class Supervised(Protocol):
    """Has a supervisor, which may be another one in the next attempt."""

    @property
    def supervisor(self) -> Controllable: ...


def _conclude(outcome: RunOutcome, supervisor: Controllable, *, began: float) -> RunOutcome:
    """Writes the result. A full disk is an error here even after a good training: the record is incomplete."""
    recorder, folder = supervisor.recorder, supervisor.folder
    tally = recorder.tally
    recorder.write(End(outcome.state, outcome.digest, tally.steps, outcome.error))
    lost = recorder.close()
    result = {
        "name": folder.name,
        "state": outcome.state,
        "exit_code": outcome.exit_code,
        "digest": outcome.digest,
        "steps": tally.steps,
        "pauses": tally.pauses,
        "restarts": supervisor.restarts,
        "mixed": supervisor.mixed,
        "error": outcome.error,
        "traceback": outcome.traceback or None,
        "metrics": tally.metrics,
        "seconds": round(time.monotonic() - began, 3),
        "warnings": tally.warnings[:100],
        "lost": lost,
    }
    try:
        write_json(folder.result, result)
    except OSError as error:
        lost = f"{folder.result} could not be written ({error.strerror})" + (f"; {lost}" if lost else "")
    if lost and outcome.state == "finished":
        digest = f"; the digest of the final state is {outcome.digest}" if outcome.digest else ""
        text = f"the job has finished, but its record is not whole: {lost}{digest}. Make room on the disk"
        return RunOutcome("finished", FAILED, text, digest=outcome.digest)
    return outcome


class _signals:
    """Ctrl-C once: in order; twice: now. SIGTERM and SIGHUP: in order."""

    def __init__(self, attempts: Supervised) -> None:
        self._attempts = attempts
        self._interrupts = 0

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError):  # not the main thread: whoever runs us handles signals
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
            loop.add_signal_handler(signal.SIGTERM, lambda: self._attempts.supervisor.quit(now=False))
            loop.add_signal_handler(signal.SIGHUP, lambda: self._attempts.supervisor.quit(now=False))

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        self._interrupts += 1
        supervisor = self._attempts.supervisor
        if self._interrupts == 1:
            grace_s = supervisor.options.grace_s
            supervisor.recorder.event(
                "interrupt", f"Ctrl-C: stopping in order, for at most {grace_s:g} s (--grace); a second Ctrl-C ends at once"
            )
        supervisor.quit(now=self._interrupts > 1, interrupted=True)


class ControlVerbs:
    """The requests that the control port answers."""

    def __init__(self, attempts: Supervised) -> None:
        self._attempts = attempts

    @property
    def _supervisor(self) -> Controllable:
        return self._attempts.supervisor

    async def handle(self, request: JsonObject) -> Mapping[str, object]:
        match request["verb"]:
            case "status":
                return self._supervisor.status()
            case "scale":
                self._supervisor.scale(to_int(request["workers"]))
                return self._supervisor.status()
            case "stop":
                self._supervisor.stop(now=bool(request.get("now", False)))
                return {}
            case "metrics":
                return {"metrics": self._supervisor.recorder.tally.metrics}
            case "drain":
                return self._supervisor.drain(str(request.get("agent") or self._supervisor.options.agent))
            case other:
                raise UsageError(f"there is no verb {other!r}")
