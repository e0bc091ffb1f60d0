"""Shared torchmetrics objects: what they count in slices is merged over all slices of all workers.

A shared metric begins every slice with its default state. Its state after the slice travels with the pass. At the end of the pass
the states of all slices are merged in their order and added to the metric, alike on all workers. So `compute()` outside of slices
gives the value over everything, on every worker, and a pass that is repeated counts once.

torchmetrics is never imported here: a script that has not imported it has no metrics.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeGuard, TypeVar, cast

import torch

from stretto.core.errors import ScriptError
from stretto.core.type_guards import is_dict, is_list
from stretto.train.reduce.sums import CARRIED_BYTES, Key, size

if TYPE_CHECKING:
    from stretto.train.sharing.shared_objects import SharedObjects


Metric: TypeAlias = Any
"""A `torchmetrics.Metric`. It has no type here, since torchmetrics may be absent, and merging uses its private attributes."""
State: TypeAlias = Any
"""A state of a metric: a tensor, or a list of tensors."""
T = TypeVar("T")

SHARED_AS = "torchmetrics:states"
"""The name of the metrics' states within the shared state; no keyword of `job.share` can be this."""
COUNT = "#updates"
WATCHED_PASSES = 2
"""Passes of each loader in which metrics that are not shared are searched for: the second finds those that the first has made."""


class SavedMetric(TypedDict):
    """A metric as newcomers and checkpoints get it."""

    count: int
    states: dict[str, State]
    others: dict[str, int | float | torch.Tensor]


class TorchMetrics:
    """The shared metrics of a job. Without any, every method does nothing."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._kinds: dict[str, dict[str, str]] = {}
        """How each state of each metric is merged."""
        self._outer: set[str] = set()
        """Metrics with states that are in no other metric: those that scripts reset themselves."""
        self._of_loaders: dict[str, Metric] = {}
        """Metrics that were given to loaders, by the name that they are shared under."""
        self._before: list[MetricSnapshot] = []
        self._watched: dict[int, int] = {}
        """Passes of each loader in which metrics that are not shared were searched for."""
        self._counts: list[tuple[Metric, int]] = []
        """Metrics that are not shared, with their update counts before the pass."""

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def add_loader(
        self, metrics: Mapping[str, object], loader: int, *, train: bool, share: Callable[..., None]
    ) -> dict[str, Metric]:
        """Shares the metrics of a loader, each once."""
        package = sys.modules.get("torchmetrics")
        for name, metric in metrics.items():
            if package is None or not isinstance(metric, package.Metric | package.MetricCollection):
                raise ScriptError(
                    f"job.loader(metrics={{{name!r}: …}}) got a {type(metric).__name__}: give torchmetrics objects, "
                    "or use step.log, step.sum and step.gather"
                )
            if train:
                raise ScriptError(
                    f"job.loader(metrics={{{name!r}: …}}) of a training loader: metrics of a loader are those of an "
                    f"evaluation (train=False); share this one with job.share({name}={name}) and reset it yourself"
                )
            if not any(metric is other for other in self._of_loaders.values()):
                shared_as = name if name not in self._of_loaders else f"{name}_{loader}"
                share(**{shared_as: metric})
                self._of_loaders[shared_as] = metric
        return dict(metrics)

    def collect(self, shared: SharedObjects) -> None:
        """Collects the metrics among the shared objects and in the shared modules. Called once, before training."""
        package = sys.modules.get("torchmetrics")
        if package is None:
            return
        seen: set[int] = set()
        for name, root in shared.modules:
            for path, module in _submodules(root, prefix=name):
                _check_kind(package, path, module)
                if isinstance(module, package.MetricCollection):
                    _without_groups(module)
                if isinstance(module, package.Metric) and id(module) not in seen:
                    seen.add(id(module))
                    self._add(path, module)
        if self._metrics:
            shared.objects[SHARED_AS] = self

    def _add(self, path: str, metric: Metric) -> None:
        self._metrics[path] = metric
        # ClasswiseWrapper shows the states of the metric in it as its own.
        inner = any(getattr(child, "_defaults", None) is metric._defaults for child in metric.children())
        self._kinds[path] = {} if inner else {name: kind_of(path, metric, name) for name in metric._defaults}
        if self._kinds[path] and not any(path.startswith(f"{other}.") and self._kinds[other] for other in self._metrics):
            self._outer.add(path)
        # What all workers hold alike needs no other synchronisation.
        metric.sync_on_compute = metric._to_sync = False
        metric.distributed_available_fn = _never

    # ---- slices

    def enter_slice(self) -> None:
        """Gives all metrics their default states."""
        self._before = [begin(metric, self._kinds[path]) for path, metric in self._metrics.items()]

    def leave_slice(self) -> list[tuple[Key, State]]:
        """Returns what the slice has counted, and restores the metrics as they were before it."""
        states: list[tuple[Key, State]] = []
        wrong: list[str] = []
        before, self._before = self._before, []
        for (path, metric), start in zip(self._metrics.items(), before, strict=False):
            wrong += self._wrong(path, metric, start)
            if metric._update_count:
                states += self._states(path, metric)
            for name, value in start.states.items():
                setattr(metric, name, value)
            metric._update_count, metric._computed, metric._forward_cache = start.count, start.computed, start.cache
        if wrong and sys.exc_info()[0] is None:
            raise ScriptError(wrong[0])
        return states

    def _states(self, path: str, metric: Metric) -> Iterator[tuple[Key, State]]:
        yield ("state.sum", path, COUNT), metric._update_count
        for name, kind in self._kinds[path].items():
            value = getattr(metric, name)
            if kind == "state.mean":
                yield ("state.sum", path, name), value.detach() * metric._update_count
            elif isinstance(value, torch.Tensor):
                yield (kind, path, name), [value.detach()] if kind == "state.list" else value.detach()
            else:
                yield (kind, path, name), [entry.detach() if isinstance(entry, torch.Tensor) else entry for entry in value]

    def _wrong(self, path: str, metric: Metric, start: MetricSnapshot) -> Iterator[str]:
        """What a slice must not do with a metric."""
        if path in self._outer and metric._forward_cache is None:
            yield (
                f"{path}.reset() was called inside the loop over the slices, where a metric has counted this slice alone: call "
                f"it before the loop over the steps; for the value of one slice call the metric itself, {path}(…)"
            )
        for name, value in start.numbers.items():
            if getattr(metric, name) != value:
                yield (
                    f"{path} is a {type(metric).__name__}, which counts in {name}, outside of its states: that cannot be merged "
                    "over slices; use another metric, or give it what step.gather collects, after the pass"
                )

    # ---- passes

    def merge(self, totals: Mapping[Key, State]) -> None:
        """Adds what the slices of a pass have counted on all workers."""
        for path, metric in self._metrics.items():
            count = totals.get(("state.sum", path, COUNT))
            if not count:
                continue
            for name, kind in self._kinds[path].items():
                part = totals["state.sum" if kind == "state.mean" else kind, path, name]
                setattr(metric, name, merged(metric, name, kind, part, count=count))
            metric._update_count += count
            metric._computed = None

    # ---- states for newcomers and checkpoints

    def state_dict(self) -> dict[str, SavedMetric]:
        """The states of all metrics, not copied."""
        return {
            path: {
                "count": metric._update_count,
                "states": {name: getattr(metric, name) for name in self._kinds[path]},
                "others": others(metric),
            }
            for path, metric in self._metrics.items()
        }

    def load_state_dict(self, state_dict: Mapping[str, SavedMetric]) -> None:
        """Gives the metrics copies of these states."""
        for path, saved in state_dict.items():
            metric = self._metrics.get(path)
            if metric is None:
                raise ScriptError(
                    f"the job counts with the torchmetrics object {path}, this worker has none: all workers must run "
                    "the same script"
                )
            for name, value in {**saved["states"], **saved["others"]}.items():
                setattr(metric, name, placed(copied(value), metric.device))
            metric._update_count, metric._computed = saved["count"], None

    def snapshot(self) -> dict[str, SavedMetric]:
        """A copy of the states, for workers that skip an evaluation which the others have done; empty if the states are large."""
        states = self.state_dict()
        if size([states], bound=CARRIED_BYTES) > CARRIED_BYTES:
            return {}
        return {path: copied(saved) for path, saved in states.items()}

    # ---- metrics that are not shared

    def watch_unshared(self, loader: int) -> None:
        """Before a pass: notes the counts of metrics that are not shared, in the first passes of each loader."""
        self._counts = []
        if "torchmetrics" not in sys.modules or self._watched.get(loader, 0) >= WATCHED_PASSES:
            return
        self._watched[loader] = self._watched.get(loader, 0) + 1
        self._counts = [(metric, metric._update_count) for metric in self._unshared()]

    def check_unshared(self, loader: int) -> None:
        """After a pass: refuses metrics that were updated in slices and are not shared."""
        counts, self._counts = self._counts, []
        for metric, count in counts:
            if metric._update_count != count:
                name, kind = _named(metric), type(metric).__name__
                what, given = (f"{name} ({kind})", f"{name}={name}") if name else (kind, "metric=metric")
                raise ScriptError(
                    f"the torchmetrics object {what} was updated in the slices of loader {loader} and is not shared, "
                    f"so it has counted this worker's slices alone: make it before training, add job.share({given}), "
                    "and call its reset() where it was made anew"
                )

    def _unshared(self) -> list[Metric]:
        """All metrics of this process that are not shared."""
        metric_class = sys.modules["torchmetrics"].Metric
        shared = {id(metric) for metric in self._metrics.values()}
        is_metric: dict[type[object], bool] = {}
        unshared: list[Metric] = []
        for value in cast("list[object]", gc.get_objects()):
            kind = type(value)
            if kind not in is_metric:
                is_metric[kind] = issubclass(kind, metric_class)
            if is_metric[kind] and id(value) not in shared:
                unshared.append(value)
        return unshared


def _submodules(root: torch.nn.Module, *, prefix: str) -> Iterator[tuple[str, torch.nn.Module]]:
    yield from root.named_modules(prefix=prefix)


def computed(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The values of metrics that are single numbers, by name; `name/key` for those of a collection."""
    numbers: dict[str, float] = {}
    for name, metric in metrics.items():
        if not any(getattr(module, "_update_count", 0) for module in metric.modules()):
            continue
        result: object = metric.compute()
        values = {f"{name}/{key}": value for key, value in result.items()} if is_dict(result) else {name: result}
        numbers |= {key: float(value) for key, value in values.items() if isinstance(value, torch.Tensor) and value.numel() == 1}
    return numbers


def _check_kind(package: ModuleType, path: str, module: torch.nn.Module) -> None:
    if isinstance(module, package.MetricTracker):
        raise ScriptError(
            f"{path} is a MetricTracker, which makes a copy of its metric at every increment(): share the metric "
            "itself, and keep the values of the epochs in shared state (job.state)"
        )


def _without_groups(collection: Metric) -> None:
    """Turns off the compute groups that torchmetrics finds by itself: they follow from the first batch, which differs by worker."""
    if collection._enable_compute_groups is True:
        collection._compute_groups_create_state_ref(copy=True)
        collection._enable_compute_groups, collection._groups_checked, collection._groups = False, False, {}


def _named(metric: Metric) -> str:
    """The name of a metric, or of the collection that it is in, among the script's globals."""
    for name, value in vars(sys.modules["__main__"]).items():
        if value is metric or (isinstance(value, torch.nn.Module) and any(module is metric for module in value.modules())):
            return name
    return ""


def _never() -> bool:
    return False


CHUNKS = 64
"""A list of more tensors than this that would be concatenated in the end is concatenated at once: states stay cheap to send."""
SCRATCH = ("_computed", "_forward_cache", "_update_count")
UNTOUCHED = object()
"""Stands in a metric's forward cache from the beginning of a slice: `reset` puts None there."""


@dataclass(frozen=True, slots=True)
class MetricSnapshot:
    """A metric as it was before a slice."""

    states: dict[str, State]
    count: int
    computed: object
    cache: object
    numbers: dict[str, int | float]


def kind_of(path: str, metric: Metric, name: str) -> str:
    """The operation that merges a state."""
    default, reduction = metric._defaults[name], metric._reductions[name]
    data = sys.modules["torchmetrics.utilities.data"]
    kinds = {
        data.dim_zero_sum: "state.sum",
        data.dim_zero_mean: "state.mean",
        data.dim_zero_max: "state.max",
        data.dim_zero_min: "state.min",
        data.dim_zero_cat: "state.list",
        None: "state.list",
    }
    kind = kinds.get(reduction)
    text = getattr(reduction, "__name__", str(reduction))
    if kind is None:
        raise ScriptError(
            f"{path} is a {type(metric).__name__}, whose state {name} is reduced by {text}: shared metrics may use "
            "dist_reduce_fx='sum', 'mean', 'max', 'min', 'cat' or None"
        )
    if isinstance(default, list) and kind != "state.list":
        raise ScriptError(
            f"{path} is a {type(metric).__name__}, whose state {name} is a list that is reduced by {text}: lists "
            "have dist_reduce_fx='cat' or None"
        )
    if isinstance(default, torch.Tensor) and kind == "state.sum" and bool(default.count_nonzero()):
        raise ScriptError(
            f"{path} is a {type(metric).__name__}, whose state {name} is a sum that begins with {default.tolist()}: "
            "every slice begins with it, so a sum must begin with zeros"
        )
    if isinstance(default, torch.Tensor) and reduction is data.dim_zero_cat and default.numel():
        raise ScriptError(
            f"{path} is a {type(metric).__name__}, whose state {name} is concatenated and begins with "
            f"{default.tolist()}: every slice begins with it, so it must begin empty"
        )
    return kind


def begin(metric: Metric, names: Iterable[str]) -> MetricSnapshot:
    """Gives a metric the states that every slice begins with."""
    before = MetricSnapshot(
        {name: getattr(metric, name) for name in names},
        metric._update_count,
        metric._computed,
        metric._forward_cache,
        {name: value for name, value in others(metric).items() if not isinstance(value, torch.Tensor)},
    )
    for name in names:
        default = metric._defaults[name]
        setattr(metric, name, default.detach().clone() if isinstance(default, torch.Tensor) else [])
    metric._update_count, metric._computed, metric._forward_cache = 0, None, UNTOUCHED
    return before


def others(metric: Metric) -> dict[str, int | float | torch.Tensor]:
    """Numbers and tensors that a metric keeps beside its states, such as the extremes of MinMaxMetric."""
    return {
        name: value
        for name, value in cast("dict[str, object]", vars(metric)).items()
        if _is_number(value) and name not in metric._defaults and name not in SCRATCH
    }


def _is_number(value: object) -> TypeGuard[int | float | torch.Tensor]:
    return type(value) in (int, float) or isinstance(value, torch.Tensor)


def merged(metric: Metric, name: str, kind: str, part: State, *, count: int) -> State:
    """A state with what the slices of a pass have added to it, in `count` updates. Nothing is changed in place."""
    current: State = getattr(metric, name)
    before, in_list = metric._update_count, kind == "state.list" and not isinstance(metric._defaults[name], torch.Tensor)
    part = placed(part, torch.device("cpu") if metric.compute_on_cpu and in_list else metric.device)
    if kind == "state.sum":
        return current + part
    if kind == "state.mean":
        return (current * before + part) / (before + count) if before else part / count
    if kind != "state.list":
        return (torch.maximum if kind == "state.max" else torch.minimum)(current, part)
    if isinstance(current, torch.Tensor):
        return _stacked(current, part, fresh=not before, cat=metric._reductions[name] is not None)
    joined = current + part
    if metric._reductions[name] is not None and len(joined) > CHUNKS and len({_row(entry) for entry in joined}) == 1:
        return [torch.cat([entry.reshape(-1) if not entry.dim() else entry for entry in joined])]
    return joined


def _stacked(current: torch.Tensor, parts: list[torch.Tensor], *, fresh: bool, cat: bool) -> torch.Tensor:
    """As torchmetrics joins tensors of several processes: one row for each slice where no reduction is given."""
    if cat:
        return torch.cat([*([] if fresh else [current]), *parts])
    rows = [] if fresh else list(current) if current.dim() > parts[0].dim() else [current]
    rows += parts
    return rows[0] if len(rows) == 1 else torch.stack(rows)


def _row(value: object) -> object:
    return (value.dtype, value.shape[1:], value.device) if isinstance(value, torch.Tensor) else id(value)


def placed(value: State, device: torch.device) -> State:
    """Moves tensors, and those in lists, to a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [placed(entry, device) for entry in value] if is_list(value) else value


def copied(value: State) -> State:
    """Copies tensors, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if is_dict(value):
        return {key: copied(entry) for key, entry in value.items()}
    return [copied(entry) for entry in value] if is_list(value) else value
