"""torchmetrics objects that a job shares: what they count in slices is merged over all slices of all workers.

A shared metric begins every slice with its default state. What the slice makes of it travels with the pass; when the pass is
over, the slices' states are merged in their order and added to the state that all workers hold alike. So `compute()` outside of
slices gives the value over everything, on every worker, and a pass that is repeated counts once.

torchmetrics is never imported here: where the script has not imported it, there is nothing to find.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from stretto.core.errors import ScriptError
from stretto.train.reduce.sums import CARRIED_BYTES, Key, size
from stretto.train.sharing.metric_states import Before, begin, copied, kind_of, merged, others, placed

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
        known: set[int] = set()
        for name, root in shared.modules:
            for path, module in root.named_modules(prefix=name):
                _check_kind(package, path, module)
                if isinstance(module, package.MetricCollection):
                    _without_groups(module)
                if isinstance(module, package.Metric) and id(module) not in known:
                    known.add(id(module))
                    self._add(path, module)
        if self._metrics:
            shared.objects[SHARED_AS] = self

    def _add(self, path: str, metric: Any) -> None:
        self._metrics[path] = metric
        # ClasswiseWrapper shows the states of the metric in it as its own.
        inner = any(getattr(one, "_defaults", None) is metric._defaults for one in metric.children())
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
                yield (kind, path, name), [one.detach() if isinstance(one, torch.Tensor) else one for one in value]

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

    def merge(self, found: Mapping[Key, Any]) -> None:
        """Adds what all slices of a pass have counted."""
        for path, metric in self._metrics.items():
            count = found.get(("state.sum", path, COUNT))
            if not count:
                continue
            for name, kind in self._kinds[path].items():
                part = found["state.sum" if kind == "state.mean" else kind, path, name]
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
        for path, held in state.items():
            metric = self._metrics.get(path)
            if metric is None:
                raise ScriptError(
                    f"the job counts with the torchmetrics object {path}, this worker has none: all workers must run "
                    "the same script"
                )
            for name, value in {**held["states"], **held["others"]}.items():
                setattr(metric, name, placed(copied(value), metric.device))
            metric._update_count, metric._computed = held["count"], None

    def snapshot(self) -> dict[str, Any]:
        """A copy of the states for those who skip an evaluation that the others have done; empty where they are large."""
        states = self.state_dict()
        if size([states], bound=CARRIED_BYTES) > CARRIED_BYTES:
            return {}
        return {path: {key: copied(value) for key, value in held.items()} for path, held in states.items()}

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
        known = {id(one) for one in self._metrics.values()}
        kinds: dict[type, bool] = {}
        found = []
        for one in gc.get_objects():
            kind = type(one)
            if kind not in kinds:
                kinds[kind] = issubclass(kind, metric)
            if kinds[kind] and id(one) not in known:
                found.append(one)
        return found


def computed(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The values of metrics that are single numbers, by name; `name/key` for those of a collection."""
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        if not any(getattr(one, "_update_count", 0) for one in metric.modules()):
            continue
        value = metric.compute()
        values = {f"{name}/{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
        found |= {key: float(one) for key, one in values.items() if isinstance(one, torch.Tensor) and one.numel() == 1}
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
        if value is metric or (isinstance(value, torch.nn.Module) and any(one is metric for one in value.modules())):
            return name
    return ""


def _never() -> bool:
    return False
