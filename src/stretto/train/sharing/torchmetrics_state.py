"""torchmetrics objects that a job shares: what they count in slices is merged over all slices of all workers.

A shared metric begins every slice with its default state. What the slice makes of it travels with the pass; when the pass is
over, the slices' states are merged in their order and added to the state that all workers hold alike. So `compute()` outside of
slices gives the value over everything, on every worker, and a pass that is repeated counts once.

torchmetrics is never imported here: where the script has not imported it, there is nothing to find.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from stretto.core.errors import ScriptError
from stretto.train.reduce.sums import CARRIED_BYTES, Key, size

if TYPE_CHECKING:
    from stretto.train.sharing.shared_objects import SharedObjects


SHARED_AS = "torchmetrics:states"
"""The name under which the states are a part of the shared state; no keyword of `job.share` can be this."""
COUNT = "#updates"
LOOKS = 2
"""Passes of each loader in which metrics that are not shared are looked for: the second finds those that the first has made."""


class TorchMetrics:
    """The shared metrics of a job. Without any, every method does nothing."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._kinds: dict[str, dict[str, str]] = {}
        """How each state of each metric is merged."""
        self._outer: set[str] = set()
        """Metrics with states that are in no other metric: those that scripts reset themselves."""
        self._given: dict[str, Any] = {}
        """Metrics that were given to loaders, by the name that they are shared under."""
        self._before: list[Before] = []
        self._looks: dict[int, int] = {}
        self._counts: dict[int, tuple[Any, int]] | None = None

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def take(self, given: dict[str, Any], loader: int, *, train: bool, share: Callable[..., None]) -> dict[str, Any]:
        """Metrics that were given to a loader. Each is shared, once."""
        package = sys.modules.get("torchmetrics")
        for name, metric in given.items():
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
            if not any(metric is other for other in self._given.values()):
                shared_as = name if name not in self._given else f"{name}_{loader}"
                share(**{shared_as: metric})
                self._given[shared_as] = metric
        return dict(given)

    def find(self, shared: SharedObjects) -> None:
        """Takes over the metrics among the shared objects and in the shared modules. Once, before training."""
        package = sys.modules.get("torchmetrics")
        if package is None:
            return
        seen: set[int] = set()
        for name, root in shared.modules:
            for path, module in root.named_modules(prefix=name):
                _check_kind(package, path, module)
                if isinstance(module, package.MetricCollection):
                    _without_groups(module)
                if isinstance(module, package.Metric) and id(module) not in seen:
                    seen.add(id(module))
                    self._add(path, module)
        if self._metrics:
            shared.objects[SHARED_AS] = self

    def _add(self, path: str, metric: Any) -> None:
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
        self._before = [begin(metric, self._kinds[path]) for path, metric in self._metrics.items()]

    def leave_slice(self) -> list[tuple[Key, Any]]:
        """What the slice has counted. The metrics are again as they were before it."""
        found: list[tuple[Key, Any]] = []
        wrong: list[str] = []
        before, self._before = self._before, []
        for (path, metric), start in zip(self._metrics.items(), before, strict=False):
            wrong += self._wrong(path, metric, start)
            if metric._update_count:
                found += self._states(path, metric)
            for name, value in start.states.items():
                setattr(metric, name, value)
            metric._update_count, metric._computed, metric._forward_cache = start.count, start.computed, start.cache
        if wrong and sys.exc_info()[0] is None:
            raise ScriptError(wrong[0])
        return found

    def _states(self, path: str, metric: Any) -> Iterator[tuple[Key, Any]]:
        yield ("state.sum", path, COUNT), metric._update_count
        for name, kind in self._kinds[path].items():
            value = getattr(metric, name)
            if kind == "state.mean":
                yield ("state.sum", path, name), value.detach() * metric._update_count
            elif isinstance(value, torch.Tensor):
                yield (kind, path, name), [value.detach()] if kind == "state.list" else value.detach()
            else:
                yield (kind, path, name), [entry.detach() if isinstance(entry, torch.Tensor) else entry for entry in value]

    def _wrong(self, path: str, metric: Any, start: Before) -> Iterator[str]:
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

    def merge(self, totals: Mapping[Key, Any]) -> None:
        """Adds what all slices of a pass have counted."""
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

    def state_dict(self) -> dict[str, Any]:
        return {
            path: {
                "count": metric._update_count,
                "states": {name: getattr(metric, name) for name in self._kinds[path]},
                "others": others(metric),
            }
            for path, metric in self._metrics.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for path, saved in state.items():
            metric = self._metrics.get(path)
            if metric is None:
                raise ScriptError(
                    f"the job counts with the torchmetrics object {path}, this worker has none: all workers must run "
                    "the same script"
                )
            for name, value in {**saved["states"], **saved["others"]}.items():
                setattr(metric, name, placed(copied(value), metric.device))
            metric._update_count, metric._computed = saved["count"], None

    def snapshot(self) -> dict[str, Any]:
        """A copy of the states for those who skip an evaluation that the others have done; empty where they are large."""
        states = self.state_dict()
        if size([states], bound=CARRIED_BYTES) > CARRIED_BYTES:
            return {}
        return {path: {key: copied(value) for key, value in saved.items()} for path, saved in states.items()}

    # ---- metrics that are not shared

    def look_before(self, loader: int) -> None:
        """Notes what metrics that are not shared have counted before a pass: in the first passes of each loader."""
        self._counts = None
        if "torchmetrics" not in sys.modules or self._looks.get(loader, 0) >= LOOKS:
            return
        self._looks[loader] = self._looks.get(loader, 0) + 1
        self._counts = {id(metric): (metric, metric._update_count) for metric in self._strangers()}

    def look_after(self, loader: int) -> None:
        """Refuses metrics that were updated in slices and are not shared."""
        counts, self._counts = self._counts, None
        for metric, count in counts.values() if counts else ():
            if metric._update_count != count:
                name, kind = _named(metric), type(metric).__name__
                what, given = (f"{name} ({kind})", f"{name}={name}") if name else (kind, "metric=metric")
                raise ScriptError(
                    f"the torchmetrics object {what} was updated in the slices of loader {loader} and is not shared, "
                    f"so it has counted this worker's slices alone: make it before training, add job.share({given}), "
                    "and call its reset() where it was made anew"
                )

    def _strangers(self) -> list[Any]:
        metric = sys.modules["torchmetrics"].Metric
        own = {id(one) for one in self._metrics.values()}
        kinds: dict[type, bool] = {}
        strangers = []
        for one in gc.get_objects():
            kind = type(one)
            if kind not in kinds:
                kinds[kind] = issubclass(kind, metric)
            if kinds[kind] and id(one) not in own:
                strangers.append(one)
        return strangers


def computed(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The values of metrics that are single numbers, by name; `name/key` for those of a collection."""
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        if not any(getattr(module, "_update_count", 0) for module in metric.modules()):
            continue
        value = metric.compute()
        values = {f"{name}/{key}": module for key, module in value.items()} if isinstance(value, dict) else {name: value}
        found |= {key: float(module) for key, module in values.items() if isinstance(module, torch.Tensor) and module.numel() == 1}
    return found


def _check_kind(package: Any, path: str, module: Any) -> None:
    if isinstance(module, package.MetricTracker):
        raise ScriptError(
            f"{path} is a MetricTracker, which makes a copy of its metric at every increment(): share the metric "
            "itself, and keep the values of the epochs in shared state (job.state)"
        )


def _without_groups(collection: Any) -> None:
    """Compute groups that torchmetrics finds by itself follow from the first batch, which each worker has another of."""
    if collection._enable_compute_groups is True:
        collection._compute_groups_create_state_ref(copy=True)
        collection._enable_compute_groups, collection._groups_checked, collection._groups = False, False, {}


def _named(metric: Any) -> str:
    """The name under which a script's globals have a metric, or the collection that it is in."""
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
class Before:
    """A metric as it was before a slice."""

    states: dict[str, Any]
    count: int
    computed: Any
    cache: Any
    numbers: dict[str, int | float]


def kind_of(path: str, metric: Any, name: str) -> str:
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


def begin(metric: Any, names: Iterable[str]) -> Before:
    """Gives a metric the states that every slice begins with."""
    before = Before(
        {name: getattr(metric, name) for name in names},
        metric._update_count,
        metric._computed,
        metric._forward_cache,
        {name: value for name, value in others(metric).items() if type(value) in (int, float)},
    )
    for name in names:
        default = metric._defaults[name]
        setattr(metric, name, default.detach().clone() if isinstance(default, torch.Tensor) else [])
    metric._update_count, metric._computed, metric._forward_cache = 0, None, UNTOUCHED
    return before


def others(metric: Any) -> dict[str, Any]:
    """Numbers and tensors that a metric keeps beside its states, such as the extremes of MinMaxMetric."""
    return {
        name: value
        for name, value in vars(metric).items()
        if (type(value) in (int, float) or isinstance(value, torch.Tensor)) and name not in metric._defaults and name not in SCRATCH
    }


def merged(metric: Any, name: str, kind: str, part: Any, *, count: int) -> Any:
    """A state with what the slices of a pass have added to it, in `count` updates. Nothing is changed in place."""
    current: Any = getattr(metric, name)
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


def _row(value: Any) -> Any:
    return (value.dtype, value.shape[1:], value.device) if isinstance(value, torch.Tensor) else id(value)


def placed(value: Any, device: torch.device) -> Any:
    """Tensors, and those in lists, on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [placed(entry, device) for entry in value] if isinstance(value, list) else value


def copied(value: Any) -> Any:
    """Tensors, lists and dictionaries as copies."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(entry) for key, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value
