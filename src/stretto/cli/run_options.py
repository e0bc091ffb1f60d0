"""The options of `stretto run`, declared as a table: each field is an option, with its default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from stretto.agent.hosts.store_options import StoreOptions
from stretto.agent.options import KEEP, RunOptions, parse_checkpoints, parse_workers
from stretto.agent.workers.stall_detection import STALL_S
from stretto.cli.options import Json, Quiet, Runs
from stretto.cli.run_modes import MODES, TorchrunFlags
from stretto.cli.targets import runs_folder
from stretto.core.errors import UsageError

RESTARTS = 3


@dataclass(frozen=True, slots=True)
class RunFlags:
    """The options and arguments of `stretto run`."""

    script: Annotated[str | None, Argument(help="The training script; with --replay, that run's.", show_default=False)] = None
    args: Annotated[list[str] | None, Argument(help="Arguments of the script: everything after it.", show_default=False)] = None
    workers: Annotated[
        str | None,
        Option("--workers", "-w", metavar="N|A:B", show_default=False, help="How many: a number, or fewest:most [default: 1]."),
    ] = None
    start: Annotated[int | None, Option(help="Number of workers at the start [default: the minimum].", show_default=False)] = None
    name: Annotated[str | None, Option(help="The run's name [default: the script's, numbered].", show_default=False)] = None
    runs: Runs = None
    threads: Annotated[
        int, Option(help="Intra-op threads per worker, the same for the whole job: the number changes the bits.")
    ] = 1
    max_restarts: Annotated[
        int | None,
        Option(
            "--max-restarts",
            "--max_restarts",
            show_default=False,
            help="Dead workers that are replaced within five minutes [default: 3].",
        ),
    ] = None
    digest_every: Annotated[int, Option(help="Compare the workers' states every N steps; 0 for never.")] = 0
    hang_timeout: Annotated[float | None, Option(help="Seconds allowed between two steps.", show_default=False)] = None
    slice_timeout: Annotated[float, Option(help="Seconds that a slice may take; longer if slices are slow.")] = 10.0
    stall_timeout: Annotated[
        float, Option(help="Seconds without progress after which a run reports which worker waits where; longer if steps are slow.")
    ] = STALL_S
    grace: Annotated[float, Option(help="Seconds that a graceful stop may take.")] = 30.0
    allow_mixed: Annotated[bool, Option("--allow-mixed", help="Admit workers that would compute different bits.")] = False
    checkpoint: Annotated[str | None, Option(metavar="DIR|URL", help="Where checkpoints go.", show_default=False)] = None
    checkpoint_every: Annotated[
        str | None,
        Option(metavar="N|30s", help="Interval between checkpoints, in steps or time [default: 100].", show_default=False),
    ] = None
    keep: Annotated[int, Option(help="Number of checkpoints to keep.")] = KEEP
    restart_mode: Annotated[
        str | None,
        Option(
            metavar="torchrun",
            show_default=False,
            help="Stop and start everybody at every change, for scripts that torchrun could start. Gives none of the promises.",
        ),
    ] = None
    nproc_per_node: Annotated[
        str | None,
        Option(
            "--nproc-per-node",
            "--nproc_per_node",
            metavar="N|auto|cpu|gpu",
            help="In restart mode: as torchrun's.",
            show_default=False,
        ),
    ] = None
    nnodes: Annotated[str | None, Option(help="In restart mode: as torchrun's; one machine.", show_default=False)] = None
    standalone: Annotated[bool, Option("--standalone", help="In restart mode: as torchrun's; it always is.")] = False
    autoscale: Annotated[
        str | None,
        Option(metavar="HOW", show_default=False, help="Let the job size itself: efficiency=0.6, utility, '+1 every 50 steps'."),
    ] = None
    price: Annotated[float | None, Option(help="Price per worker and hour, for --autoscale utility.", show_default=False)] = None
    worth: Annotated[str | None, Option(help="What finishing is worth, such as 'decay(100, 2h)'.", show_default=False)] = None
    stragglers: Annotated[str, Option(help="Slow workers: rebalance, replace or ignore.")] = "rebalance"
    replay: Annotated[
        str | None, Option(metavar="RUN", show_default=False, help="Repeat a run with its batch plan, to its digest.")
    ] = None
    store: Annotated[
        str | None,
        Option(
            metavar="URL",
            show_default=False,
            help="For several hosts: etcd://H1:2379,H2:2379 or tcp://H1:7070. Run the same command on every host.",
        ),
    ] = None
    job: Annotated[str | None, Option(help="With --store: the job's name.", show_default=False)] = None
    slots: Annotated[
        int | None, Option(help="With --store: workers that this host may run [default: its cores].", show_default=False)
    ] = None
    interface: Annotated[
        str | None,
        Option(
            metavar="NAME|ADDRESS",
            show_default=False,
            help="With --store: interface or address that other hosts reach [default: that of its route to the store].",
        ),
    ] = None
    host: Annotated[
        str, Option("--host", help="With --store: name of this host in the job [default: its host name].", show_default=False)
    ] = ""
    store_token: Annotated[
        str | None,
        Option(
            metavar="FILE",
            show_default=False,
            help="The store's secret: a tcp store's token, or the password of etcd's user; or set STRETTO_STORE_TOKEN.",
        ),
    ] = None
    store_ca: Annotated[str | None, Option(metavar="FILE", help="The store's CA certificate, for TLS.", show_default=False)] = None
    store_cert: Annotated[str | None, Option(metavar="FILE", help="This host's certificate.", show_default=False)] = None
    store_key: Annotated[str | None, Option(metavar="FILE", help="The certificate's key.", show_default=False)] = None
    lease: Annotated[float, Option(help="With --store: seconds after which a silent host counts as lost.")] = 2.0
    fence: Annotated[
        float | None,
        Option(help="With --store: seconds that training goes on without the store [default: 90].", show_default=False),
    ] = None
    hosts: Annotated[
        str | None,
        Option(metavar="A,B,C:4", show_default=False, help="Start the job on these hosts over ssh and show the output of all."),
    ] = None
    detach: Annotated[bool, Option("--detach", hidden=True)] = False
    module: Annotated[str | None, Option("-m", hidden=True)] = None
    tensorboard: Annotated[bool, Option(help="Write TensorBoard files if TensorBoard is installed.")] = True
    quiet: Quiet = False
    json: Json = False

    def options(self) -> RunOptions:
        """What the run is started with."""
        least, most, start, max_restarts = self._bounds()
        return RunOptions(
            script=self.script or "",
            args=tuple(self.args or ()),
            least=least,
            most=most,
            start=start,
            name=self.name,
            runs=runs_folder(self.runs),
            threads=self.threads,
            max_restarts=RESTARTS if max_restarts is None else max_restarts,
            digest_every=self.digest_every,
            hang_timeout_s=self.hang_timeout,
            slice_timeout_s=self.slice_timeout,
            stall_timeout_s=self.stall_timeout,
            grace_s=self.grace,
            allow_mixed=self.allow_mixed,
            tensorboard=self.tensorboard,
            checkpoints=parse_checkpoints(self.checkpoint, every=self.checkpoint_every, keep=self.keep),
            autoscale=self.autoscale,
            price=self.price,
            worth=self.worth,
            stragglers=self.stragglers,
            shared=self._shared(),
        )

    def _bounds(self) -> tuple[int, int, int | None, int | None]:
        """Fewest, most and first number of workers, and how many may be replaced."""
        least, most = parse_workers("1" if self.workers is None else self.workers)
        if self.restart_mode is None:
            return least, most, self.start, self.max_restarts
        flags = TorchrunFlags.read(nnodes=self.nnodes, nproc_per_node=self.nproc_per_node, max_restarts=self.max_restarts)
        return *flags.bounds((least, most) if self.workers else None, self.start), flags.max_restarts

    def _shared(self) -> StoreOptions | None:
        if self.store is None:
            if self.job is not None:
                raise UsageError(f"--job {self.job} names a job on several hosts: say which store they share with --store")
            return None
        if self.job is None:
            url = StoreOptions(self.store, "").url
            raise UsageError(f"--store {url} needs the job's name, the same on every host: --job NAME")
        return StoreOptions(
            self.store,
            self.job,
            slots=self.slots,
            interface=self.interface,
            host=self.host,
            token_file=self.store_token,
            ca=self.store_ca,
            certificate=self.store_cert,
            key=self.store_key,
            lease_s=self.lease,
            fence_s=self.fence,
        )

    def store_for_ssh(self) -> StoreOptions:
        """The store that `--hosts` hands to every host; a tcp store of its own where none is named."""
        return StoreOptions(
            self.store or "tcp://any:1",
            "any",
            token_file=self.store_token,
            ca=self.store_ca,
            certificate=self.store_cert,
            key=self.store_key,
        )

    def check_restart_mode(self) -> None:
        """`UsageError` for an unknown mode, and for torchrun's flags without it."""
        of_torchrun = self.nproc_per_node is not None or self.nnodes is not None or self.standalone
        if self.restart_mode is None and of_torchrun:
            raise UsageError(
                "--nproc-per-node, --nnodes and --standalone are torchrun's, for scripts that are not written for "
                "stretto: add --restart-mode torchrun, or use --workers"
            )
        if self.restart_mode is not None and self.restart_mode not in MODES:
            raise UsageError(f"--restart-mode {self.restart_mode!r} is unknown: there is {', '.join(MODES)}")

    def check_several_hosts(self) -> None:
        """`UsageError` for what only works on one machine."""
        flag = "--store" if self.hosts is None else "--hosts"
        if self.replay is not None:
            raise UsageError(
                f"--replay {self.replay} repeats a run on one machine, to the same digest however many hosts it had: "
                f"leave out {flag}"
            )
        if self.restart_mode is not None:
            raise UsageError(
                f"--restart-mode {self.restart_mode} starts its workers on one machine: leave out {flag}, or write the script "
                "for stretto, whose jobs have any number of hosts"
            )
