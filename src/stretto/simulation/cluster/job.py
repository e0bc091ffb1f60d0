"""One simulated job: where it is, how far it has come, what its scheduler has been able to measure.

A change of placement costs a pause in which the job holds its slots and makes no progress (`RestartCost`), or what stretto's
own changes cost (`StopFree`): old workers go on while newcomers start, then everybody pauses for one boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from stretto.batching.goodput import BatchRange, GoodputModel, gain
from stretto.batching.throughput import Observation, ThroughputModel, fit
from stretto.scheduling.types import DEFAULT_KIND, Placement, SchedulableJob, size
from stretto.simulation.cluster.application import Application

MOST_OBSERVATIONS = 64
"""More ways of running than this are not kept for the fit; the oldest goes first."""
MOST_LOSSES = 64
NODE_SLOTS = 4
"""Slots of a node in the published simulation: the oracle of step times knows no other."""
CLOSE = 0.02
"""Relative error up to which an observation confirms the model."""


@dataclass(frozen=True, slots=True)
class RestartCost:
    """Every change of placement stops the whole job for `seconds`."""

    seconds: float = 30.0

    def cost(self, before: Placement, after: Placement) -> tuple[float, float]:
        """Seconds during which the old workers that stay go on alone, then seconds in which nothing happens."""
        return 0.0, self.seconds


@dataclass(frozen=True, slots=True)
class StopFree:
    """Nobody stops: newcomers start beside the others, then all pause for a step boundary."""

    pause_s: float = 0.3
    """Old workers' pause at a switch: 19 ms were measured with 12 MB of state, 264 ms with 300 MB."""
    start_s: float = 10.0
    """From the decision until a newcomer is ready: process, imports, model."""

    def cost(self, before: Placement, after: Placement) -> tuple[float, float]:
        staying = stay(before, after)
        if not staying:
            return 0.0, self.start_s
        if size(staying) == size(after):
            return 0.0, self.pause_s
        return self.start_s, self.pause_s


Costs = RestartCost | StopFree


def stay(before: Placement, after: Placement) -> Placement:
    """The workers that are in both placements."""
    counts = dict(after)
    return tuple((node, min(count, counts[node])) for node, count in before if counts.get(node, 0) > 0)


@lru_cache(maxsize=65536)
def remembered_fit(observations: tuple[Observation, ...]) -> ThroughputModel:
    return fit(observations)


@dataclass(slots=True)
class SimJob:
    """Mutable on purpose: the simulator's own record. What a policy gets is the frozen `SchedulableJob` of `seen`."""

    name: str
    application: Application
    arrival_s: float
    batch: BatchRange
    template: SchedulableJob
    """Limits, priority, owner and so on, as declared."""
    fixed_growth: bool = False
    """Whether any size up to `most` may be asked for at once; otherwise at most twice what it has run on so far."""
    declares: bool = False
    """Whether it declares its length, so that policies see what remains."""
    needs_model: bool = True
    whole_seconds: bool = False
    """Epochs end on whole seconds, as in the published simulation."""
    oracle: bool = False
    placement: Placement = ()
    kind: str = DEFAULT_KIND
    local_batch: int = 0
    accumulation: int = 0
    progress: float = 0.0
    epoch: int = 0
    end_s: float | None = None
    start_s: float | None = None
    pause_left_s: float = 0.0
    waiting_left_s: float = 0.0
    """Time during which newcomers still start, and only `staying` work."""
    staying: Placement = ()
    attained_s: float = 0.0
    changes: int = -1
    changed_s: float | None = None
    turn_began_s: float | None = None
    """When it was last given slots after it had none."""
    observations: dict[str, dict[tuple[int, int, int], Observation]] = field(
        default_factory=dict[str, dict[tuple[int, int, int], Observation]]
    )
    throughput: dict[str, ThroughputModel] = field(default_factory=dict[str, ThroughputModel])
    noise: tuple[float, float] | None = None
    losses: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    steps_table: tuple[float, ...] | None = None
    _basis: object = None
    """What the batch was chosen for; it is chosen again when that has changed."""

    @property
    def profiled(self) -> int:
        return max((key[1] for table in self.observations.values() for key in table), default=0)

    @property
    def whole(self) -> float:
        """All of its work, in samples of the initial batch."""
        return self.application.progress(self.application.epochs) * self.application.initial_batch

    @property
    def done(self) -> float:
        return self.progress * self.application.initial_batch

    def model(self, kind: str) -> GoodputModel | None:
        throughput = self.throughput.get(kind)
        if throughput is None or self.noise is None:
            return None
        return GoodputModel(throughput, self.noise[0], self.noise[1], self.batch)

    def place(self, placement: Placement, *, kind: str, time_s: float, costs: Costs) -> None:
        before = self.placement
        self.placement = placement
        self._basis = None
        self.changed_s = time_s
        if not placement:
            self.local_batch = self.accumulation = 0
            self.pause_left_s = self.waiting_left_s = 0.0
            self.turn_began_s = None
            return
        if not before:
            self.turn_began_s = time_s
        same_kind = kind == self.kind
        self.kind = kind
        self.changes += 1
        if self.start_s is None:
            self.start_s = time_s
        self.waiting_left_s, self.pause_left_s = costs.cost(before if same_kind else (), placement)
        self.staying = stay(before, placement) if self.waiting_left_s > 0 else ()
        self.choose_batch(self.staying or placement)

    def roll_back(self, checkpoint_s: float) -> None:
        """Lose what was done since the last checkpoint, at most this long ago; half of it on average."""
        rate = self.progress / self.attained_s if self.attained_s > 0 else 0.0
        floor = self.application.progress(self.epoch)
        self.progress = max(floor, self.progress - rate * size(self.placement) * checkpoint_s / 2)

    def eta_s(self) -> float | None:
        """Seconds until it ends, if that is in this epoch and on this placement."""
        if not self.placement or self.local_batch < 1 or self.epoch + 1 < self.application.epochs or self.waiting_left_s > 0:
            return None
        shape = tuple(count for _, count in self.placement)
        step, sync = self.application.step_s(shape, self.local_batch)
        batch = sum(shape) * self.local_batch * (self.accumulation + 1)
        gain = self._gain(batch)
        left = self.application.progress(self.application.epochs) - self.progress
        return self.pause_left_s + left * (step + (step - sync) * self.accumulation) / gain

    def oracle_steps(self) -> tuple[float, ...]:
        """True seconds for a step of the fixed batch on 1, 2, … workers, packed on nodes of four."""
        if self.steps_table is None:
            self.steps_table = step_table(self.application, self.batch, min(self.template.most, self.batch.most_workers))
        return self.steps_table

    def choose_batch(self, placement: Placement) -> None:
        workers = size(placement)
        model = self.model(self.kind)
        if model is not None and self.batch.fixed is None:
            choice = model.choose(nodes=len(placement), workers=workers)
            self.local_batch, self.accumulation = choice.local_batch, choice.accumulation
            if self.local_batch > 0:
                return
        self.local_batch, self.accumulation = plain_batch(self.batch, workers)

    def advance(self, now_s: float, seconds: float, *, noise: Callable[[str, float], float], slowdown: float, speed: float) -> None:
        """Let so much time pass on the current placement. `noise` disturbs what is measured, `slowdown` and `speed` the truth."""
        if not self.placement or self.end_s is not None:
            return
        workers = size(self.placement)
        self.attained_s += seconds * workers
        if self.waiting_left_s > 0:
            alone = min(self.waiting_left_s, seconds)
            self._train(now_s, alone, self.staying, noise, slowdown, speed)
            self.waiting_left_s -= alone
            seconds, now_s = seconds - alone, now_s + alone
            if self.waiting_left_s <= 0 and self.end_s is None:
                self.choose_batch(self.placement)
        pause = min(self.pause_left_s, seconds)
        self.pause_left_s -= pause
        if self.end_s is None and seconds > pause:
            self._train(now_s + pause, seconds - pause, self.placement, noise, slowdown, speed)
        if self.end_s is not None:
            self.attained_s -= max(now_s + seconds - self.end_s, 0.0) * workers

    def _train(
        self,
        now_s: float,
        seconds: float,
        placement: Placement,
        noise: Callable[[str, float], float],
        slowdown: float,
        speed: float,
    ) -> None:
        application = self.application
        while seconds > 0 and self.end_s is None:
            goodput = self._measure(placement, noise, speed) * (1.0 - slowdown)
            target = application.progress(self.epoch + 1)
            if self.progress + goodput * seconds < target:
                self.progress += goodput * seconds
                now_s += seconds
                seconds = 0.0
            else:
                spent = min((target - self.progress) / goodput, seconds)
                spent = float(round(spent)) if self.whole_seconds else spent
                self.epoch += 1
                self.progress = target
                now_s += spent
                seconds -= spent
                self.losses.append((now_s, application.loss(self.epoch)))
                del self.losses[:-MOST_LOSSES]
                if self.epoch >= application.epochs:
                    self.end_s = now_s
            self.choose_batch_if_changed(placement)

    def choose_batch_if_changed(self, placement: Placement) -> None:
        key = (placement, self.epoch, self.throughput.get(self.kind), self.noise)
        if self._basis != key and self.end_s is None:
            self.choose_batch(placement)
            self._basis = key

    def _measure(self, placement: Placement, noise: Callable[[str, float], float], speed: float) -> float:
        """Steps of the initial batch a second, truly; records what the job can see of it."""
        shape = tuple(count for _, count in placement)
        workers = sum(shape)
        step, sync = self.application.step_s(shape, self.local_batch)
        compute = (step - sync) / speed
        step = compute + sync
        batch = workers * self.local_batch * (self.accumulation + 1)
        if self.needs_model:
            self.noise = self.application.noise(batch, min(self.epoch, self.application.epochs - 1))
            self._observe((len(shape), workers, self.local_batch), noise(self.name, compute), noise(self.name, step))
        return self._gain(batch) / (step + compute * self.accumulation)

    def _gain(self, batch: float) -> float:
        sqr, var = self.application.noise(batch, min(self.epoch, self.application.epochs - 1))
        return gain(sqr, var, batch / self.application.initial_batch)

    def _observe(self, key: tuple[int, int, int], grad_s: float, step_s: float) -> None:
        table = self.observations.setdefault(self.kind, {})
        if key in table:
            return
        table[key] = Observation(*key, grad_s, max(step_s, grad_s))
        if len(table) > MOST_OBSERVATIONS:
            del table[next(iter(table))]
        model = self.throughput.get(self.kind)
        if model is None or not _predicts(model, table[key]):
            self.throughput[self.kind] = remembered_fit(tuple(table.values()))


def _predicts(model: ThroughputModel, observation: Observation) -> bool:
    """Whether the model already foretells an observation so well that fitting again would change nothing that matters."""
    grad = model.grad_s(observation.local_batch)
    step = model.step_s(nodes=observation.nodes, workers=observation.workers, local_batch=observation.local_batch)
    return abs(grad / observation.grad_s - 1) < CLOSE and abs(step / observation.step_s - 1) < CLOSE


def plain_batch(batch: BatchRange, workers: int) -> tuple[int, int]:
    """Local batch and accumulation steps without a model: the fixed batch, or the smallest that every worker has a part of."""
    if batch.per_worker is not None:
        total = batch.per_worker * workers
    else:
        total = batch.fixed or max(batch.initial, batch.local_low * workers)
    local = -(-total // workers)
    accumulation = -(-local // batch.local_high) - 1
    if workers == 1 and total > batch.initial and batch.per_worker is None:
        accumulation = max(accumulation, 1)
    size_ = -(-local // (accumulation + 1))
    return min(size_, batch.most // (workers * (accumulation + 1))), accumulation


@lru_cache(maxsize=1024)
def step_table(application: Application, batch: BatchRange, most: int) -> tuple[float, ...]:
    """Seconds for a step on 1, 2, … workers, packed on nodes of `NODE_SLOTS`."""
    table: list[float] = []
    for workers in range(1, most + 1):
        rest = workers % NODE_SLOTS
        shape = (NODE_SLOTS,) * (workers // NODE_SLOTS) + ((rest,) if rest else ())
        local, accumulation = plain_batch(batch, workers)
        step, sync = application.step_s(shape, local)
        table.append(step + (step - sync) * accumulation)
    return tuple(table)
