"""`stretto run`: a job in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Exit, Option

from stretto.agent.completion import RunOutcome
from stretto.agent.hosts.store_options import StoreOptions
from stretto.agent.options import KEEP, RunOptions, parse_checkpoints, parse_workers
from stretto.agent.records.recorder import RunObserver
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.run import open_run, run
from stretto.agent.workers.stall_detection import STALL_S
from stretto.cli.console import JsonLines, RunConsole
from stretto.cli.options import Json, Quiet, Runs
from stretto.cli.run_modes import MODES, TorchrunFlags, open_restarting, replay_run, run_restart_mode
from stretto.cli.scripts import check_launcher, given, no_module, own_frames, stray_flags, stray_hint
from stretto.cli.targets import folder_of, runs_folder
from stretto.core.errors import UsageError

RESTARTS = 3


def command(
    context: Context,
    script: Annotated[str | None, Argument(help="The training script; with --replay, that run's.", show_default=False)] = None,
    args: Annotated[list[str] | None, Argument(help="Everything after the script is the script's own.", show_default=False)] = None,
    *,
    workers: Annotated[
        str | None,
        Option("--workers", "-w", metavar="N|A:B", show_default=False, help="How many: a number, or fewest:most [default: 1]."),
    ] = None,
    start: Annotated[int | None, Option(help="How many to begin with [default: the fewest].", show_default=False)] = None,
    name: Annotated[str | None, Option(help="The run's name [default: the script's, numbered].", show_default=False)] = None,
    runs: Runs = None,
    threads: Annotated[int, Option(help="Intra-op threads of every worker; changes bits, so it is the job's.")] = 1,
    max_restarts: Annotated[
        int | None,
        Option(
            "--max-restarts",
            "--max_restarts",
            show_default=False,
            help="Workers replaced after dying, in any five minutes [default: 3].",
        ),
    ] = None,
    digest_every: Annotated[int, Option(help="Compare the workers' states every N steps; 0 for never.")] = 0,
    hang_timeout: Annotated[float | None, Option(help="Seconds allowed between two steps.", show_default=False)] = None,
    slice_timeout: Annotated[float, Option(help="Seconds that any slice may take; more where slices are slow.")] = 10.0,
    stall_timeout: Annotated[
        float, Option(help="Seconds without progress after which a run says who waits where; more where steps are slow.")
    ] = STALL_S,
    grace: Annotated[float, Option(help="Seconds that a graceful stop may take.")] = 30.0,
    allow_mixed: Annotated[bool, Option("--allow-mixed", help="Admit workers that would compute other bits.")] = False,
    checkpoint: Annotated[str | None, Option(metavar="DIR|URL", help="Where checkpoints go.", show_default=False)] = None,
    checkpoint_every: Annotated[
        str | None, Option(metavar="N|30s", help="How often: steps, or a time [default: 100].", show_default=False)
    ] = None,
    keep: Annotated[int, Option(help="How many checkpoints are kept.")] = KEEP,
    restart_mode: Annotated[
        str | None,
        Option(
            metavar="torchrun",
            show_default=False,
            help="Stop and start everybody at every change, for scripts that torchrun could start. Gives none of the promises.",
        ),
    ] = None,
    nproc_per_node: Annotated[
        str | None,
        Option(
            "--nproc-per-node",
            "--nproc_per_node",
            metavar="N|auto|cpu|gpu",
            help="In restart mode: as torchrun's.",
            show_default=False,
        ),
    ] = None,
    nnodes: Annotated[str | None, Option(help="In restart mode: as torchrun's; one machine.", show_default=False)] = None,
    standalone: Annotated[bool, Option("--standalone", help="In restart mode: as torchrun's; it always is.")] = False,
    autoscale: Annotated[
        str | None,
        Option(metavar="HOW", show_default=False, help="Let the job size itself: efficiency=0.6, utility, '+1 every 50 steps'."),
    ] = None,
    price: Annotated[float | None, Option(help="Of a worker for an hour, for --autoscale utility.", show_default=False)] = None,
    worth: Annotated[str | None, Option(help="What finishing is worth, such as 'decay(100, 2h)'.", show_default=False)] = None,
    stragglers: Annotated[str, Option(help="Slow workers: rebalance, replace or ignore.")] = "rebalance",
    replay: Annotated[
        str | None, Option(metavar="RUN", show_default=False, help="Repeat a run with its batch plan, to its digest.")
    ] = None,
    store: Annotated[
        str | None,
        Option(
            metavar="URL",
            show_default=False,
            help="For several hosts: etcd://H1:2379,H2:2379 or tcp://H1:7070. Run the same command on every host.",
        ),
    ] = None,
    job: Annotated[str | None, Option(help="With --store: the job's name.", show_default=False)] = None,
    slots: Annotated[
        int | None, Option(help="With --store: workers that this host may run [default: its cores].", show_default=False)
    ] = None,
    interface: Annotated[
        str | None,
        Option(
            metavar="NAME|ADDRESS",
            show_default=False,
            help="With --store: where the other hosts reach this one [default: the way to the store].",
        ),
    ] = None,
    host: Annotated[
        str, Option("--host", help="With --store: what this host is called [default: its name].", show_default=False)
    ] = "",
    store_token: Annotated[
        str | None,
        Option(
            metavar="FILE",
            show_default=False,
            help="The store's secret: a tcp store's token, or the password of etcd's user; or set STRETTO_STORE_TOKEN.",
        ),
    ] = None,
    store_ca: Annotated[str | None, Option(metavar="FILE", help="The store's CA certificate, for TLS.", show_default=False)] = None,
    store_cert: Annotated[str | None, Option(metavar="FILE", help="This host's certificate.", show_default=False)] = None,
    store_key: Annotated[str | None, Option(metavar="FILE", help="The certificate's key.", show_default=False)] = None,
    lease: Annotated[float, Option(help="With --store: seconds after which a silent host counts as lost.")] = 2.0,
    fence: Annotated[
        float | None,
        Option(help="With --store: seconds that training goes on without the store [default: 90].", show_default=False),
    ] = None,
    hosts: Annotated[
        str | None,
        Option(metavar="A,B,C:4", show_default=False, help="Start the job on these hosts over ssh and show what all of them say."),
    ] = None,
    detach: Annotated[bool, Option("--detach", hidden=True)] = False,
    module: Annotated[str | None, Option("-m", hidden=True)] = None,
    tensorboard: Annotated[bool, Option(help="Write TensorBoard files where it is installed.")] = True,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    if module is not None:
        raise UsageError(no_module(module))
    if script:
        _check_script(context, script, args or ())
    if store is not None or hosts is not None:
        _for_one_machine("--store" if hosts is None else "--hosts", restart_mode=restart_mode, replay=replay)
    if hosts is not None:
        given = StoreOptions(
            store or "tcp://any:1", "any", token_file=store_token, ca=store_ca, certificate=store_cert, key=store_key
        )
        return _on_hosts(hosts, given, script=script, args=args or (), by_store=store is not None, job=job, runs=runs)
    if detach:
        return _detached(job=job, runs=runs)
    _check_mode(restart_mode, of_torchrun=nproc_per_node is not None or nnodes is not None or standalone)
    least, most = parse_workers("1" if workers is None else workers)
    if restart_mode is not None:
        flags = TorchrunFlags.read(nnodes=nnodes, nproc_per_node=nproc_per_node, max_restarts=max_restarts)
        least, most, start = flags.bounds((least, most) if workers else None, start)
        max_restarts = flags.max_restarts
    options = RunOptions(
        script=script or "",
        args=tuple(args or ()),
        least=least,
        most=most,
        start=start,
        name=name,
        runs=runs_folder(runs),
        threads=threads,
        max_restarts=RESTARTS if max_restarts is None else max_restarts,
        digest_every=digest_every,
        hang_timeout_s=hang_timeout,
        slice_timeout_s=slice_timeout,
        stall_timeout_s=stall_timeout,
        grace_s=grace,
        allow_mixed=allow_mixed,
        tensorboard=tensorboard,
        checkpoints=parse_checkpoints(checkpoint, every=checkpoint_every, keep=keep),
        autoscale=autoscale,
        price=price,
        worth=worth,
        stragglers=stragglers,
        shared=_shared(
            store,
            job,
            slots=slots,
            interface=interface,
            host=host,
            token_file=store_token,
            ca=store_ca,
            certificate=store_cert,
            key=store_key,
            lease_s=lease,
            fence_s=fence,
        ),
    )
    if replay is not None:
        return replay_run(
            options,
            folder_of(replay, runs),
            watch=lambda folder, go: watch(folder, go, quiet=quiet, json=json),
            quiet=quiet or json,
        )
    if not script:
        raise UsageError("name the training script, as in `stretto run train.py`, or a run with --replay RUN")
    if restart_mode is not None:
        folder = open_restarting(options)
        watch(folder, lambda observer: run_restart_mode(options, folder, observer=observer), quiet=quiet, json=json)
    else:
        folder = open_run(options)
        watch(folder, lambda observer: run(options, folder, observer=observer), quiet=quiet, json=json)


def _check_script(context: Context, script: str, args: Sequence[str]) -> None:
    """Says what a launcher or a flag in the wrong place means. A flag behind the script is not an error: it may be the script's."""
    check_launcher(script, args)
    if found := stray_flags(context.command, script, args, given=given(context)):
        print(f"hint: {stray_hint('stretto run', script, found)}", file=sys.stderr)


def _on_hosts(
    hosts: str, given: StoreOptions, *, script: str | None, args: Sequence[str], by_store: bool, job: str | None, runs: Path | None
) -> None:
    from stretto.cli.hosts import launch

    if not script:
        raise UsageError("name the training script, as in `stretto run --hosts a,b train.py`")
    launch(
        hosts,
        script=script,
        args=args,
        shared=given if by_store else None,
        job=job,
        runs=runs,
        token=given.token() if given.scheme == "tcp" else given.password(),
    )


def _detached(*, job: str | None, runs: Path | None) -> None:
    from stretto.cli.hosts import run_detached

    run_detached([word for word in sys.argv[2:] if word != "--detach"], job=job or "run", runs=runs)


def _check_mode(restart_mode: str | None, *, of_torchrun: bool) -> None:
    if restart_mode is None and of_torchrun:
        raise UsageError(
            "--nproc-per-node, --nnodes and --standalone are torchrun's, for scripts that are not written for "
            "stretto: add --restart-mode torchrun, or use --workers"
        )
    if restart_mode is not None and restart_mode not in MODES:
        raise UsageError(f"--restart-mode {restart_mode!r} is unknown: there is {', '.join(MODES)}")


def _for_one_machine(flag: str, *, restart_mode: str | None, replay: str | None) -> None:
    if replay is not None:
        raise UsageError(
            f"--replay {replay} repeats a run on one machine, to the same digest however many hosts it had: leave out {flag}"
        )
    if restart_mode is not None:
        raise UsageError(
            f"--restart-mode {restart_mode} starts its workers on one machine: leave out {flag}, or write the script "
            "for stretto, whose jobs have any number of hosts"
        )


def _shared(store: str | None, job: str | None, **options: Any) -> StoreOptions | None:
    if store is None:
        if job is not None:
            raise UsageError(f"--job {job} names a job on several hosts: say which store they share with --store")
        return None
    if job is None:
        raise UsageError(f"--store {StoreOptions(store, '').url} needs the job's name, the same on every host: --job NAME")
    return StoreOptions(store, job, **options)


def watch(folder: RunFolder, go: Callable[[RunObserver], RunOutcome], *, quiet: bool, json: bool) -> None:
    """Runs it in the foreground, to its end and its exit code."""
    if json:
        outcome = go(JsonLines())
    else:
        with RunConsole(folder.name, quiet=quiet) as screen:
            if not quiet:
                screen.say(f"run {folder.name} in {folder.path}", style="dim")
            outcome = go(screen)
    _conclude(outcome, folder, quiet=quiet or json)
    raise Exit(outcome.exit_code)


def _conclude(outcome: RunOutcome, folder: RunFolder, *, quiet: bool) -> None:
    if outcome.error is not None:
        if outcome.traceback:
            print(own_frames(outcome.traceback).rstrip(), file=sys.stderr)
        print(f"error: {outcome.error}", file=sys.stderr)
    elif not quiet:
        digest = f", digest {outcome.digest}" if outcome.digest else ""
        asked = folder.read(folder.request) or {}
        saved = outcome.state == "stopped" and asked.get("checkpoints") and not asked.get("shared")
        further = f", `stretto resume {folder.path}` to go on" if saved else ""
        print(f"{outcome.state}{digest}; see `stretto show {folder.path}`{further}", file=sys.stderr)
