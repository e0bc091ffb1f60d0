"""Shared torchmetrics objects: every slice counts once, whoever computes it, and every worker has the value over all."""

import itertools

import pytest
import torch
import torchmetrics
import torchmetrics.classification as tc
import torchmetrics.regression as tr
from test_plain_python import check, refused

import stretto.train.job  # noqa: F401  (the scripts' processes are forked from this one and need not load it again)
from stretto.core.errors import ScriptError
from stretto.core.slices import deal
from stretto.train.reduce.sums import SliceSums, pack, total
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.torchmetrics_state import TorchMetrics

SLICES, STEPS, CLASSES = 8, 3, 4


class Means(torchmetrics.Metric):
    """States of every kind, as a user might write them."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.zeros(()), dist_reduce_fx="mean")
        self.add_state("high", torch.tensor(-1e9), dist_reduce_fx="max")
        self.add_state("low", torch.tensor(1e9), dist_reduce_fx="min")
        self.add_state("tail", torch.zeros(0), dist_reduce_fx="cat")
        self.add_state("rows", [], dist_reduce_fx=None)

    def update(self, values: torch.Tensor) -> None:
        self.mean = (self.mean * (self._update_count - 1) + values.mean()) / self._update_count
        self.high, self.low = torch.maximum(self.high, values.max()), torch.minimum(self.low, values.min())
        self.tail = torch.cat([self.tail, values])
        self.rows.append(values.sum())

    def compute(self) -> torch.Tensor:
        return torch.cat([torch.stack([self.mean, self.high, self.low]), self.tail, torch.stack(self.rows)])


def classifying(**more: object) -> torchmetrics.MetricCollection:
    return torchmetrics.MetricCollection(
        {
            "accuracy": tc.MulticlassAccuracy(CLASSES),
            "f1": tc.MulticlassF1Score(CLASSES),
            "auroc": tc.MulticlassAUROC(CLASSES),
            "binned": tc.MulticlassAUROC(CLASSES, thresholds=11),
            "confusion": tc.MulticlassConfusionMatrix(CLASSES),
            "topk": tc.MulticlassAccuracy(CLASSES, top_k=2, average="micro"),
            "calibration": tc.MulticlassCalibrationError(CLASSES),
        },
        **more,
    )  # type: ignore[arg-type]


MAKERS = {
    "collection": lambda: classifying(),
    "explicit groups": lambda: classifying(compute_groups=[["accuracy", "f1"]]),
    "no groups": lambda: classifying(compute_groups=False),
    "classwise": lambda: torchmetrics.wrappers.ClasswiseWrapper(tc.MulticlassAccuracy(CLASSES, average=None)),
    "composed": lambda: tc.MulticlassAccuracy(CLASSES) + 2 * tc.MulticlassRecall(CLASSES),
    "mean": torchmetrics.MeanMetric,
    "sum": torchmetrics.SumMetric,
    "max": torchmetrics.MaxMetric,
    "min": torchmetrics.MinMetric,
    "cat": torchmetrics.CatMetric,
    "kinds": Means,
    "pearson": tr.PearsonCorrCoef,
    "mse": tr.MeanSquaredError,
    "spearman": tr.SpearmanCorrCoef,
}
INTEGERS = ("collection", "explicit groups", "no groups", "classwise", "composed")


def batches(seed: int = 0) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For every step and slice: logits and labels."""
    g = torch.Generator().manual_seed(seed)
    sizes = itertools.cycle([3, 5, 1, 4])

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        samples = next(sizes)
        return torch.randn(samples, CLASSES, generator=g), torch.randint(CLASSES, (samples,), generator=g)

    return [[batch() for _ in range(SLICES)] for _ in range(STEPS)]


def update(name: str, metric: torchmetrics.Metric, logits: torch.Tensor, labels: torch.Tensor) -> None:
    if name in INTEGERS:
        metric.update(logits, labels)
    elif name in ("pearson", "mse", "spearman"):
        metric.update(logits[:, 0], logits[:, 1] + labels)
    else:
        metric.update(logits[:, 0])


def worker(make) -> tuple[torchmetrics.Metric, TorchMetrics, SharedObjects]:
    metric, metrics, shared = make(), TorchMetrics(), SharedObjects()
    shared.add({"metric": metric})
    metrics.collect(shared)
    return metric, metrics, shared


def spread(name: str, workers: int, *, repeat: bool = False) -> list[tuple[torchmetrics.Metric, SharedObjects]]:
    """The metric of each of so many workers that share the slices of all steps."""
    team = [worker(MAKERS[name]) for _ in range(workers)]
    for step, again in itertools.product(batches(), (True, False) if repeat else (False,)):
        blobs = []
        for (metric, metrics, _), share in zip(team, deal(SLICES, workers), strict=True):
            tally = SliceSums()
            for unit in share:
                metrics.enter_slice()
                update(name, metric, *step[unit])
                tally.set_states(unit, metrics.leave_slice())
            blobs.append(tally.pack(units=SLICES, share=share))
        if not again:
            for _, metrics, _ in team:
                metrics.merge(total(blobs, units=SLICES))
    return [(metric, shared) for metric, _, shared in team]


def value(metric: torchmetrics.Metric) -> bytes:
    return pack(metric.compute())


@pytest.mark.parametrize("name", MAKERS)
def test_all_workers_have_the_value_of_one_process_to_the_last_bit(name: str) -> None:
    ((alone, shared),) = spread(name, 1)
    for workers in (2, 3, 8):
        for metric, theirs in spread(name, workers, repeat=workers == 3):
            assert value(metric) == value(alone)
            assert theirs.digest({}) == shared.digest({})


@pytest.mark.parametrize("name", MAKERS)
def test_the_value_is_the_one_that_torchmetrics_gives_without_stretto(name: str) -> None:
    plain = MAKERS[name]()
    for logits, labels in itertools.chain.from_iterable(batches()):
        update(name, plain, logits, labels)
    ((metric, _),) = spread(name, 1)
    expected, found = plain.compute(), metric.compute()
    if not isinstance(expected, dict):
        expected, found = {"": expected}, {"": found}
    for key, one in expected.items():
        torch.testing.assert_close(found[key], one)
        if name in INTEGERS and key not in ("calibration",):
            assert torch.equal(found[key], one), key


def test_a_local_metric_would_differ() -> None:
    """The control: what one worker of three has counted by itself is something else."""
    alone, local = spread("collection", 1)[0][0], classifying()
    for step in batches():
        for unit in deal(SLICES, 3)[0]:
            local.update(*step[unit])
    assert value(local) != value(alone)


def test_a_newcomer_gets_what_was_counted_and_reset_works() -> None:
    for name in MAKERS:
        ((metric, shared),) = spread(name, 1)
        newcomer, _, theirs = worker(MAKERS[name])
        theirs.load(*shared.flatten({}))
        assert value(newcomer) == value(metric), name
        assert theirs.digest({}) == shared.digest({}), name
        for one in (metric, newcomer):
            one.reset()
            update(name, one, *batches(1)[0][0])
        assert value(newcomer) == value(metric), name


def test_minmax_keeps_its_extremes() -> None:
    def make() -> torchmetrics.Metric:
        return torchmetrics.wrappers.MinMaxMetric(tc.MulticlassAccuracy(CLASSES))

    metric, metrics, shared = worker(make)
    for unit, (logits, labels) in enumerate(batches()[0]):
        metrics.enter_slice()
        metric.update(logits, labels)
        tally = SliceSums()
        tally.set_states(unit, metrics.leave_slice())
        metrics.merge(total([tally.pack(units=SLICES, share=deal(SLICES, 1)[0])], units=SLICES))
        metric.compute()
    newcomer, _, theirs = worker(make)
    theirs.load(*shared.flatten({}))
    assert value(newcomer) == value(metric)


def test_long_lists_are_kept_short() -> None:
    metric, metrics, _ = worker(torchmetrics.CatMetric)
    for step in range(200):
        metrics.enter_slice()
        metric.update(torch.tensor([float(step)]))
        tally = SliceSums()
        tally.set_states(0, metrics.leave_slice())
        metrics.merge(total([tally.pack(units=1, share=deal(1, 1)[0])], units=1))
    assert len(metric.value) <= 64
    assert metric.compute().tolist() == [float(step) for step in range(200)]


class Custom(torchmetrics.Metric):
    def __init__(self, default: object, reduction: object) -> None:
        super().__init__()
        self.add_state("odd", default, dist_reduce_fx=reduction)  # type: ignore[arg-type]

    def update(self, *_: object) -> None: ...
    def compute(self) -> None: ...


def median(values: torch.Tensor) -> torch.Tensor:
    return values.median(dim=0).values


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Custom(torch.zeros(2), median), "metric is a Custom, whose state odd is reduced by median.*'sum', 'mean'"),
        (lambda: Custom([], "sum"), "odd is a list that is reduced by dim_zero_sum"),
        (lambda: Custom(torch.ones(2), "sum"), r"begins with \[1.0, 1.0\]"),
        (lambda: torchmetrics.MetricTracker(tc.MulticlassAccuracy(CLASSES)), "MetricTracker"),
    ],
)
def test_what_cannot_be_merged_is_refused_by_name(make, words: str) -> None:
    with pytest.raises(ScriptError, match=words):
        worker(make)


def test_a_metric_that_counts_outside_of_its_states_is_refused_in_its_first_slice() -> None:
    metric, metrics, _ = worker(lambda: torchmetrics.wrappers.Running(torchmetrics.MeanMetric(), window=3))
    metrics.enter_slice()
    metric.update(1.0)
    with pytest.raises(ScriptError, match="Running, which counts in _num_vals_seen"):
        metrics.leave_slice()


def test_a_metric_never_asks_torch_distributed(tmp_path) -> None:
    """The control is the same metric without being shared."""
    asked = []

    def available() -> bool:
        asked.append(1)
        return False

    for metric in (
        tc.MulticlassAccuracy(CLASSES, distributed_available_fn=available),
        worker(lambda: tc.MulticlassAccuracy(CLASSES, distributed_available_fn=available))[0],
    ):
        metric.update(*batches()[0][0])
        metric.compute()
    assert len(asked) == 1


SCRIPT = """
import torchmetrics
from torchmetrics.classification import MulticlassAccuracy
model = nn.Linear(6, 3)
metric = MulticlassAccuracy(3, average="micro")
data = job.loader(TensorDataset(x[:43], y[:43]), batch_size=16, train=False)
"""


def test_a_shared_metric_in_a_script_or_in_its_model():
    check(
        SCRIPT
        + """
model.inner = MulticlassAccuracy(3, average="micro")
job.share(model=model, metric=metric)
truth = (model(x[:43]).argmax(1) == y[:43]).float().mean()
for sweep in range(2):
    metric.reset()
    for step in data:
        for a, b in step:
            batch = metric(model(a), b)
            assert torch.equal(batch, (model(a).argmax(1) == b).float().mean())
            model.inner.update(model(a), b)
    assert torch.equal(metric.compute(), truth) and torch.equal(model.inner.compute(), truth), metric.compute()
assert metric.update_count == 24 and model.inner.update_count == 48  # 8 slices a step, of 16, 16 and 11 samples
"""
    )


@pytest.mark.parametrize(
    ("share", "line", "words"),
    [
        ("model=model", "metric.update(model(a), b)", ["MulticlassAccuracy", "loader 0", "not shared", "job.share("]),
        ("model=model", "metric(model(a), b)", ["not shared"]),
        ("model=model", "late = globals().setdefault('late', MulticlassAccuracy(3)); late.update(model(a), b)", ["not shared"]),
        ("model=model, metric=metric", "metric.reset(); metric.update(model(a), b)", ["metric.reset()", "before the loop"]),
    ],
)
def test_a_metric_that_would_count_wrong_is_refused(share: str, line: str, words: list[str]):
    refused(
        SCRIPT
        + f"""
job.share({share})
for step in data:
    for a, b in step:
        {line}
""",
        *words,
    )


def test_metrics_that_live_in_a_slice_or_outside_of_slices_need_not_be_shared():
    check(
        SCRIPT
        + """
job.share(model=model)
for sweep in range(2):
    for step in data:
        for a, b in step:
            step.log(accuracy=MulticlassAccuracy(3, average="micro")(model(a), b))
            step.gather(logits=model(a), labels=b)
        metric.update(step.gathered["logits"], step.gathered["labels"])
assert metric.update_count == 6
"""
    )


def test_a_shared_metric_hides_no_optimizer_that_was_forgotten():
    refused(
        """
    import torchmetrics
    model = nn.Linear(6, 3)
    job.share(model=model, metric=torchmetrics.MeanMetric())
    opt = torch.optim.Adam(model.parameters())
    for step in job.loader(TensorDataset(x, y), batch_size=32):
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
        opt.step()
    """,
        "Adam",
        "not shared",
    )


def test_metrics_of_a_loader_are_those_of_its_last_sweep():
    check("""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix
    model = nn.Linear(6, 3)
    job.share(model=model)
    accuracy = MulticlassAccuracy(3, average="micro")
    both = MetricCollection({"micro": MulticlassAccuracy(3, average="micro"), "matrix": MulticlassConfusionMatrix(3)})
    first = job.loader(TensorDataset(x[:43], y[:43]), batch_size=16, train=False, metrics={"accuracy": accuracy, "both": both})
    second = job.loader(TensorDataset(x[43:], y[43:]), batch_size=16, train=False, metrics={"accuracy": accuracy})
    for data, rows in ((first, slice(43)), (first, slice(43)), (second, slice(43, 64))):
        for step in data:
            for a, b in step:
                accuracy.update(model(a), b)
                if data is first:
                    both(model(a), b)
        truth = (model(x[rows]).argmax(1) == y[rows]).float().mean()
        assert data.metrics["accuracy"] == float(truth) == float(accuracy.compute()), data.metrics
        assert data is second or data.metrics.keys() == {"accuracy", "both/micro"} and both["matrix"].compute().sum() == 43
    """)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train=False, metrics={'loss': 1.5}", ["'loss'", "float", "step.sum"]),
        ("metrics={'mean': torchmetrics.MeanMetric()}", ["'mean'", "train=False", "job.share(mean=mean)"]),
    ],
)
def test_what_cannot_be_a_loaders_metric_is_refused(arguments: str, words: list[str]):
    refused(
        f"""
    import torchmetrics
    job.loader(TensorDataset(x, y), batch_size=16, {arguments})
    """,
        *words,
    )
