"""A job in this process, put together from its parts: `Job` is what the script sees of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from stretto.core.errors import ScriptError
from stretto.core.heartbeat import Activity, Heartbeat
from stretto.core.journal import JournalEvent
from stretto.core.messages import FinishedMessage, ReadyMessage
from stretto.core.version import VERSION
from stretto.train.batch_controller import BatchController
from stretto.train.checkpoint.reader import ResumePoint
from stretto.train.checkpoint.saver import CheckpointConfig, Saver
from stretto.train.checkpoint.snapshot import identify
from stretto.train.consistency import Consistency, PreambleCheck
from stretto.train.data.loader import Loader
from stretto.train.data.loader_arguments import Arguments
from stretto.train.entry.agent_channel import AgentChannel, NullHeartbeat
from stretto.train.entry.contract import code_terms, contract, sha
from stretto.train.entry.fingerprint import TorchSettings, fingerprint, report_changed
from stretto.train.membership import Membership
from stretto.train.oom_retry import OomCarryover
from stretto.train.position import LoaderPosition, Position
from stretto.train.reduce.reducer import ReducedParameters, Reducer
from stretto.train.reporting import AgentReporter, MetricsReporter
from stretto.train.script_checks.hidden_state import HiddenState
from stretto.train.script_checks.variables import suspects
from stretto.train.sharing.optimizer_hooks import OptimizerHooks, check_shared
from stretto.train.sharing.preallocate import StateAnnouncement
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.torchmetrics_state import TorchMetrics
from stretto.train.slice_loop import SliceLoop
from stretto.train.state_sync import StateSync
from stretto.train.step_runner import StepRunner


class ResumeOptions(TypedDict):
    """The checkpoint to go on from."""

    url: str
    step: int


class WorkerOptions(TypedDict, total=False):
    """The agent's options for its workers: the JSON of STRETTO_OPTIONS."""

    host: str
    threads: int
    digest_every: int
    replay: str
    """A file in the run's folder with the batches to repeat."""
    checkpoint: dict[str, Any]
    """The fields of a `CheckpointConfig`."""
    resume: ResumeOptions
    allow_mixed: bool


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """This process as a worker. Outlives a script that runs out of memory and is started again in it."""

    worker: str
    """The worker's name; "alone" under plain `python`."""
    options: WorkerOptions
    channel: AgentChannel | None
    heartbeat: Heartbeat | NullHeartbeat
    membership: Membership


class TrainingSession:
    """The parts of one job in this process. `begin` makes this worker a member, once the script has made everything."""

    def __init__(self, process: WorkerProcess, *, seed: int, changed: list[str], carried: OomCarryover | None = None) -> None:
        """`changed` are the settings of torch that were changed for the user when the script joined."""
        self.process = process
        self.seed = seed
        self.slices = 0
        """Parts that every global batch is cut into; known once there is a loader."""
        self.closed = False
        self.admitted = False
        self.resources = contextlib.ExitStack()
        """What ends with the job in this process: hooks, threads, prefetching processes."""
        self.membership = process.membership
        self.position = Position()
        self.shared = SharedObjects()
        self.loaders: list[Loader] = []
        self.metric_states = TorchMetrics()
        self.reporter = AgentReporter(process.channel, seed=seed, membership=self.membership, position=self.position)
        self.batches = BatchController(
            position=self.position,
            membership=self.membership,
            reporter=self.reporter,
            shared=self.shared,
            loaders=self.loaders,
        )
        self.resources.callback(self.batches.close)
        self.runner: StepRunner | None = None
        """Runs the steps; there once the script has begun to train."""
        self._settings = TorchSettings()
        self._fixed_settings: dict[str, str] = {}
        """As they were when training began."""
        self._changed = changed
        self._carried = carried
        self._announcement = StateAnnouncement(self.shared)
        self.membership.introduce = self._announcement.introduce

    @property
    def saver(self) -> Saver | None:
        """What writes checkpoints, where any were asked for."""
        return self.runner.saver if self.runner is not None else None

    @property
    def catching_up(self) -> bool:
        """Whether this worker's script is on its way to the place where the job trains."""
        return self.membership.catching_up

    def check_open(self, what: str) -> None:
        """Refuses what is used after the job's end."""
        if self.closed:
            raise ScriptError(
                f"{what}: this job is closed; use it before job.close() or the end of its `with` block, or join anew "
                "with stretto.join(...)"
            )

    def add_loader(self, arguments: Arguments, metrics: Mapping[str, object] | None) -> Loader:
        """Makes a loader."""
        position = LoaderPosition(arguments.policy.reference)
        loader = Loader(
            arguments,
            number=len(self.loaders),
            seed=self.seed,
            position=position,
            metric_states=self.metric_states,
            check_open=self.check_open,
            begin=self._begin_sweep,
        )
        if metrics:
            loader.torchmetrics = self.metric_states.add_loader(metrics, loader.number, train=arguments.train, share=self.share)
        self.batches.use(loader, arguments.policy)
        self.slices = arguments.slices
        self.loaders.append(loader)
        self.position.loaders.append(position)
        self.resources.callback(loader.close)
        if self.admitted:
            self.reporter.loader(loader)
        return loader

    def share(self, **objects: object) -> None:
        """Adds shared objects, before training begins."""
        self.check_open("job.share")
        if self.admitted:
            raise ScriptError("job.share was called after training began: call it before the first `for step in data`")
        self.shared.add(objects)

    # ---- the beginning of training

    def _begin_sweep(self) -> StepRunner:
        self.settle()
        return self.begin()

    def begin(self) -> StepRunner:
        """Once: this worker becomes a member, and has the state that the others have."""
        if self.admitted and self.runner is not None:
            return self.runner
        if not self.slices:
            raise ScriptError("training began before any job.loader was made")
        if any(loader.train for loader in self.loaders):
            check_shared(self.shared)
        self.metric_states.collect(self.shared)
        self.runner = runner = self._assemble()
        if self._carried is not None:
            self._carry_on(runner, self._carried)
        elif self.process.channel is None:
            self.membership.alone(self.slices)
            self.membership.seat.tick = runner.state_sync.resume()
            self.admitted = True
        else:
            self._join_roster(runner, self.process.channel)
        self._begun(runner)
        return runner

    def _assemble(self) -> StepRunner:
        """The parts that need to know what the script has made."""
        options, shared, membership, position = self.process.options, self.shared, self.membership, self.position
        reducer = Reducer(self.slices)
        self.resources.callback(reducer.close)
        self.batches.start(reducer, replay=options.get("replay"))
        hooks = OptimizerHooks(shared)
        self.resources.callback(hooks.close)
        consistency = Consistency(shared, hooks)
        parameters = ReducedParameters(shared, reducer=reducer, hooks=hooks)
        state_sync = StateSync(
            position=position,
            membership=membership,
            heartbeat=self.process.heartbeat,
            shared=shared,
            loaders=self.loaders,
            reducer=reducer,
            hooks=hooks,
            consistency=consistency,
            parameters=parameters,
            announcement=self._announcement,
        )
        parameters.prepare()
        self._announcement.start(reducer)
        self._fixed_settings = self._settings.fix()
        return StepRunner(
            seed=self.seed,
            slices=self.slices,
            digest_every=options.get("digest_every") or 0,
            position=position,
            membership=membership,
            heartbeat=self.process.heartbeat,
            shared=shared,
            settings=self._settings,
            hooks=hooks,
            reducer=reducer,
            parameters=parameters,
            preambles=PreambleCheck(consistency, membership=membership, position=position, state_sync=state_sync),
            state_sync=state_sync,
            batches=self.batches,
            slice_loop=SliceLoop(
                seed=self.seed,
                reducer=reducer,
                batches=self.batches,
                membership=membership,
                heartbeat=self.process.heartbeat,
                hidden=HiddenState(lambda: dict(shared.modules)),
            ),
            reporter=self.reporter,
            metrics=MetricsReporter(self.reporter, membership=membership, position=position, batches=self.batches),
            saver=self._open_checkpoints(state_sync),
        )

    def _open_checkpoints(self, state_sync: StateSync) -> Saver | None:
        """Opens the checkpoint to go on from, and the saver, where they are asked for."""
        config, resume = self.process.options.get("checkpoint"), self.process.options.get("resume")
        if not config and not resume:
            return None
        identity = identify(
            seed=self.seed,
            slices=self.slices,
            loaders=self.loaders,
            batching=self.batches.identity(),
            shared=self.shared,
            version=VERSION,
            fingerprint=fingerprint(),
        )
        if resume:
            state_sync.resume_point = ResumePoint(
                url=resume["url"],
                step=resume["step"],
                identity=identity,
                shared=self.shared,
                allow_mixed=self.process.options.get("allow_mixed", False),
                loaded=self._resumed,
            )
        if not config:
            return None
        return Saver(
            CheckpointConfig(**config),
            identity=identity,
            position=self.position,
            membership=self.membership,
            shared=self.shared,
            reporter=self.reporter,
            place=state_sync.place,
        )

    def _resumed(self, step: int, mixed: str | None) -> None:
        """This worker goes on from a checkpoint. `mixed` says what was different in the run that wrote it, and allowed."""
        if self.saver is not None:
            self.saver.resumed(step, mixed=mixed or "")
        if mixed is not None:
            text = f"went on from step {step} although {mixed}: the result is no longer the same bits"
            self.reporter.send(JournalEvent(what="mixed", text=text))

    def _join_roster(self, runner: StepRunner, channel: AgentChannel) -> None:
        """Reports that this worker is ready, and waits to be put on a roster."""
        described = [[loader.train, loader.batch, loader.slices, loader.tail, loader.source.size] for loader in self.loaders]
        self.process.heartbeat.activity(Activity.WAITING)
        terms = contract(seed=self.seed, slices=self.slices, loaders=self.loaders, batches=self.batches, shared=self.shared)
        channel.send(
            ReadyMessage(
                shape=f"{self.shared.shape(described)} {sha(terms)}",
                slices=self.slices,
                settings=self._fixed_settings,
                contract={**terms, **code_terms()},
            )
        )
        before = time.monotonic()
        roster = self.membership.admit(runner.state_sync.receive)
        self.admitted = True
        self.reporter.switched(roster, switch_ms=(time.monotonic() - before) * 1e3)
        self.reporter.admitted()

    def _carry_on(self, runner: StepRunner, carried: OomCarryover) -> None:
        """This process was a member before its script ran out of memory, and still is."""
        runner.state_sync.carry_on(carried.skeleton, carried.tensors)
        self.batches.carry_on(carried.batches)
        self.reporter.carry_on(carried.reports)
        self._carried = None
        self.admitted = True
        if carried.broken:
            before = time.monotonic()
            roster = self.membership.rescue()
            self.reporter.switched(roster, switch_ms=(time.monotonic() - before) * 1e3)

    def _begun(self, runner: StepRunner) -> None:
        assert self.membership.group is not None
        runner.state_sync.joined = self.membership.seat.tick or 0
        runner.reducer.join(self.membership.group)
        self._announcement.member()
        for loader in self.loaders:
            self.reporter.loader(loader)
        self.reporter.begin()
        if self.membership.chief and not self.membership.roster.base:
            report_changed(self._changed)

    # ---- the end

    def settle(self) -> None:
        """Commits the step at which the script left `for step in data`."""
        if self.runner is not None:
            self.runner.settle()

    def digest(self) -> str:
        """SHA-256 of everything shared and of the job's position."""
        self.settle()
        return self.shared.digest(self.position.to_dict())

    def finish(self, *, closed: bool = False) -> None:
        """The script has ended, or only its job where it is `closed`."""
        if self.catching_up and self.runner is not None:
            raise self.runner.state_sync.astray("ended")
        self.settle()
        self.process.heartbeat.activity(Activity.ENDED)
        stopped = self.runner is not None and self.runner.stopping
        if self.saver is not None and self.admitted and not stopped:
            self.saver.last(final=True)
        self.reporter.send(
            FinishedMessage(
                tick=self.membership.seat.tick,
                step=self.position.step,
                digest=self.digest(),
                stopped=stopped,
                closed=closed,
                hint=suspects(),
            )
        )

    def close(self) -> None:
        """Ends the job in this process. A second call does nothing."""
        if self.closed:
            return
        if self.process.channel is not None:
            self.finish(closed=True)
            self.process.channel.close()
        self.closed = True
        self.resources.close()

    def release(self) -> None:
        """Lets go of everything large, where the script starts again in this process."""
        self.shared.objects.clear()
        self.loaders.clear()
        self._announcement.release()
        self.runner = None
        self.position.open = None
