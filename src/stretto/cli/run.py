"""`stretto run`: a job in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable

from typer import Context, Exit

from stretto.agent.completion import RunOutcome
from stretto.agent.records.recorder import RunObserver
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.run import open_run, run
from stretto.cli.console import JsonLines, RunConsole
from stretto.cli.options import verb_of
from stretto.cli.run_modes import open_restarting, replay_run, run_restart_mode
from stretto.cli.run_options import RunFlags
from stretto.cli.scripts import check_launcher, no_module, own_frames, stray_flags, stray_hint
from stretto.cli.targets import folder_of
from stretto.core.errors import UsageError


def run_script(context: Context, flags: RunFlags) -> None:
    """Runs the script here, on hosts over ssh, or again as an earlier run."""
    if flags.module is not None:
        raise UsageError(no_module(flags.module))
    if flags.script:
        _check_script(context, flags.script, flags.args or [])
    if flags.store is not None or flags.hosts is not None:
        flags.check_several_hosts()
    if flags.hosts is not None:
        return _on_hosts(flags.hosts, flags)
    if flags.detach:
        return _detached(flags)
    flags.check_restart_mode()
    options = flags.options()
    if flags.replay is not None:
        return replay_run(
            options,
            folder_of(flags.replay, flags.runs),
            watch=lambda folder, start: watch(folder, start, quiet=flags.quiet, json=flags.json),
            quiet=flags.quiet or flags.json,
        )
    if not flags.script:
        raise UsageError("name the training script, as in `stretto run train.py`, or a run with --replay RUN")
    if flags.restart_mode is not None:
        folder = open_restarting(options)
        watch(folder, lambda observer: run_restart_mode(options, folder, observer=observer), quiet=flags.quiet, json=flags.json)
    else:
        folder = open_run(options)
        watch(folder, lambda observer: run(options, folder, observer=observer), quiet=flags.quiet, json=flags.json)


command = verb_of(RunFlags, run_script)


def _check_script(context: Context, script: str, args: list[str]) -> None:
    """Says what a launcher or a flag in the wrong place means. A flag behind the script is not an error: it may be the script's."""
    check_launcher(script, args)
    if flags := stray_flags(context, script, args):
        print(f"hint: {stray_hint('stretto run', script, flags)}", file=sys.stderr)


def _on_hosts(hosts: str, flags: RunFlags) -> None:
    from stretto.cli.hosts import launch

    if not flags.script:
        raise UsageError("name the training script, as in `stretto run --hosts a,b train.py`")
    store = flags.store_for_ssh()
    launch(
        hosts,
        script=flags.script,
        args=flags.args or [],
        shared=store if flags.store is not None else None,
        job=flags.job,
        runs=flags.runs,
        token=store.token() if store.scheme == "tcp" else store.password(),
    )


def _detached(flags: RunFlags) -> None:
    from stretto.cli.hosts import run_detached

    run_detached([word for word in sys.argv[2:] if word != "--detach"], job=flags.job or "run", runs=flags.runs)


def watch(folder: RunFolder, start: Callable[[RunObserver], RunOutcome], *, quiet: bool, json: bool) -> None:
    """Runs the job in the foreground and exits with its code."""
    if json:
        outcome = start(JsonLines())
    else:
        with RunConsole(folder.name, quiet=quiet) as screen:
            if not quiet:
                screen.say(f"run {folder.name} in {folder.path}", style="dim")
            outcome = start(screen)
    _conclude(outcome, folder, quiet=quiet or json)
    raise Exit(outcome.exit_code)


def _conclude(outcome: RunOutcome, folder: RunFolder, *, quiet: bool) -> None:
    if outcome.error is not None:
        if outcome.traceback:
            print(own_frames(outcome.traceback).rstrip(), file=sys.stderr)
        print(f"error: {outcome.error}", file=sys.stderr)
    elif not quiet:
        digest = f", digest {outcome.digest}" if outcome.digest else ""
        request = folder.read(folder.request) or {}
        saved = outcome.state == "stopped" and request.get("checkpoints") and not request.get("shared")
        further = f", `stretto resume {folder.path}` to go on" if saved else ""
        print(f"{outcome.state}{digest}; see `stretto show {folder.path}`{further}", file=sys.stderr)
