"""`stretto run`: a job in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from stretto.agent.folder import RunFolder
from stretto.agent.lives import Life
from stretto.agent.options import RunOptions, parse_workers
from stretto.agent.outcome import Outcome
from stretto.agent.run import open_run, run
from stretto.agent.saving import KEEP, parse_checkpoints
from stretto.cli.common import Json, Runs, runs_folder
from stretto.cli.screen import JsonLines, Screen

CONTEXT = {"allow_interspersed_args": False}


def command(
    script: Annotated[str, Argument(help="The training script.", show_default=False)],
    args: Annotated[list[str] | None, Argument(help="Everything after the script is the script's own.", show_default=False)] = None,
    *,
    workers: Annotated[str, Option("--workers", "-w", metavar="N|A:B", help="How many: a number, or fewest:most.")] = "1",
    start: Annotated[int | None, Option(help="How many to begin with [default: the fewest].", show_default=False)] = None,
    name: Annotated[str | None, Option(help="The run's name [default: the script's, numbered].", show_default=False)] = None,
    runs: Runs = None,
    threads: Annotated[int, Option(help="Intra-op threads of every worker; changes bits, so it is the job's.")] = 1,
    max_restarts: Annotated[int, Option(help="Workers replaced after dying, in any five minutes.")] = 3,
    digest_every: Annotated[int, Option(help="Compare the workers' states every N steps; 0 for never.")] = 0,
    hang_timeout: Annotated[float | None, Option(help="Seconds allowed between two steps.", show_default=False)] = None,
    slice_timeout: Annotated[float, Option(help="Seconds that any slice may take; more where slices are slow.")] = 10.0,
    grace: Annotated[float, Option(help="Seconds that a graceful stop may take.")] = 30.0,
    allow_mixed: Annotated[bool, Option("--allow-mixed", help="Admit workers that would compute other bits.")] = False,
    checkpoint: Annotated[str | None, Option(metavar="DIR|URL", help="Where checkpoints go.", show_default=False)] = None,
    checkpoint_every: Annotated[str | None, Option(metavar="N|30s", help="How often: steps, or a time [default: 100].",
                                                   show_default=False)] = None,
    keep: Annotated[int, Option(help="How many checkpoints are kept.")] = KEEP,
    tensorboard: Annotated[bool, Option(help="Write TensorBoard files where it is installed.")] = True,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Show only what goes wrong.")] = False,
    json: Json = False,
) -> None:
    least, most = parse_workers(workers)
    options = RunOptions(
        script=script, args=tuple(args or ()), least=least, most=most, start=start, name=name, runs=runs_folder(runs),
        threads=threads, max_restarts=max_restarts, digest_every=digest_every, hang_timeout_s=hang_timeout,
        slice_timeout_s=slice_timeout, grace_s=grace, allow_mixed=allow_mixed, tensorboard=tensorboard,
        checkpoints=parse_checkpoints(checkpoint, every=checkpoint_every, keep=keep),
    )
    watch(options, open_run(options), quiet=quiet, json=json)


def watch(options: RunOptions, folder: RunFolder, *, quiet: bool, json: bool, life: Life | None = None) -> None:
    """Runs it in the foreground, to its end and its exit code."""
    if json:
        outcome = run(options, folder, observer=JsonLines(), life=life)
    else:
        with Screen(folder.name, quiet=quiet) as screen:
            if not quiet:
                screen.say(f"run {folder.name} in {folder.path}", style="dim")
            outcome = run(options, folder, observer=screen, life=life)
    _conclude(outcome, folder.path, quiet=quiet or json)
    raise Exit(outcome.exit_code)


def _conclude(outcome: Outcome, path: Path, *, quiet: bool) -> None:
    if outcome.error is not None:
        if outcome.traceback:
            print(outcome.traceback.rstrip(), file=sys.stderr)
        print(f"error: {outcome.error}", file=sys.stderr)
    elif not quiet:
        digest = f", digest {outcome.digest}" if outcome.digest else ""
        print(f"{outcome.state}{digest}; see `stretto show {path}`", file=sys.stderr)
