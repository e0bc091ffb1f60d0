"""Checks the arguments of `job.loader`. Those of DataLoader are either followed or refused by name.

What a script leaves out may be set from outside: `STRETTO_SLICES` and `STRETTO_BATCH` come from a job file's `elastic.slices` and
`elastic.batch`. They are read wherever the script runs, also under plain `python`: with the same two in its environment it gives
the same bits.
"""

from __future__ import annotations

import difflib
import multiprocessing
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import SupportsIndex, TypeGuard, cast

from stretto.batching.batch_policies import Adaptive, Fixed, PerWorker, Policy, check, policy_of
from stretto.core.errors import ScriptError
from stretto.train.data.dataset_checks import check_dataset
from stretto.train.data.sample_reader import Collate, IndexedDataset

SLICES = 8
TAILS = ("drop", "keep")
REDUCTIONS = ("mean", "sum")
KNOWN = (
    "dataset",
    "batch_size",
    "slices",
    "train",
    "tail",
    "drop_last",
    "shuffle",
    "reduction",
    "metrics",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "prefetch_factor",
    "persistent_workers",
    "worker_init_fn",
    "timeout",
    "multiprocessing_context",
)
POSITIONAL = (
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)
"""DataLoader's arguments after the batch size, in its order."""
MEANT = {
    "workers": "num_workers",
    "n_workers": "num_workers",
    "bs": "batch_size",
    "collate": "collate_fn",
    "init_fn": "worker_init_fn",
    "last_batch": "tail",
    "accumulation_steps": "slices",
    "gradient_accumulation_steps": "slices",
    "validation": "train",
    "training": "train",
    "eval": "train",
}
SAMPLERS = {
    "DistributedSampler": "stretto spreads the samples itself: leave it out, and set_epoch with it",
    "RandomSampler": "use shuffle=True",
    "SequentialSampler": "use shuffle=False",
    "SubsetRandomSampler": "use job.loader(torch.utils.data.Subset(dataset, indices), …, shuffle=True)",
    "WeightedRandomSampler": "weigh the samples inside the loss, or repeat indices in a Subset: Subset(dataset, [0, 0, 1, …])",
}
WAYS = (
    "which samples a step has follows from the seed, so that any worker can have any of them. Samplers come in a later "
    "version; today there are shuffle=True or False, torch.utils.data.Subset(dataset, indices) for a choice or a repetition of "
    "samples, and weights inside the loss"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """How slices are read ahead of time: the arguments that `torch.utils.data.DataLoader` gets."""

    workers: int = 0
    factor: int = 2
    """Slices that each process reads ahead."""
    persistent: bool = False
    """Whether the processes outlive a sweep. They have the dataset as it was when they started."""
    init: Callable[[int], None] | None = None
    timeout_s: float = 0
    context: str | BaseContext | None = None
    pin_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of one loader, checked and with defaults filled in."""

    dataset: IndexedDataset
    samples: int
    policy: Policy
    slices: int
    train: bool
    tail: str
    shuffle: bool
    reduction: str
    collate: Collate | None
    prefetch: Prefetch


def refuse_words(positional: tuple[object, ...], others: dict[str, object]) -> None:
    """Refuses arguments of DataLoader that a loader does not follow, and unknown ones."""
    if positional:
        named = ", ".join(f"{name}={value!r}" for name, value in zip(POSITIONAL, positional, strict=False))
        raise ScriptError(f"job.loader takes the dataset and batch_size by place and the rest by name: write {named}")
    for name, value in others.items():
        if name in ("sampler", "batch_sampler"):
            if value is not None:
                kind = type(value).__name__
                raise ScriptError(f"{name}={kind}(…): {SAMPLERS.get(kind, WAYS)}")
        elif name == "generator":
            if value is not None:
                raise ScriptError(
                    "generator=…: the order of samples and all random numbers come from stretto.join(seed=…), "
                    "alike on every worker: leave it out"
                )
        elif name == "in_order":
            if value is not True:
                raise ScriptError(f"in_order={value!r}: steps come in the order that the seed gives, on every worker: leave it out")
        elif name == "pin_memory_device":
            if value:
                raise ScriptError(
                    f"pin_memory_device={value!r}: pin_memory=True pins for the accelerator that torch finds: leave it out"
                )
        else:
            raise ScriptError(_unknown(name))


def arguments(
    dataset: object,
    *,
    batch_size: int | Policy | None,
    slices: int | None,
    earlier: int,
    train: bool,
    tail: str | None,
    drop_last: bool | None,
    shuffle: bool | None,
    reduction: str,
    collate: Collate | None,
    prefetch: Prefetch,
) -> Arguments:
    """Checks the arguments of one loader. `earlier` is the number of slices of the job's other loaders, 0 before the first."""
    samples = check_dataset(dataset)
    _check_flag("train", train)
    if shuffle is not None:
        _check_flag("shuffle", shuffle)
    check_callable("collate_fn", collate)
    if reduction not in REDUCTIONS:
        raise ScriptError(
            f"reduction={reduction!r}: how the loss of a slice comes from its samples: reduction='mean' (PyTorch's "
            "default) or reduction='sum'"
        )
    tail = _tail(tail, drop_last, train=train)
    count = _slices(slices, earlier)
    size = _whole_batch(batch_size, count)
    if train:
        size = requested_batch(size, slices=count, samples=samples)
    policy = policy_of(size)
    if not isinstance(policy, Fixed):
        if not train:
            raise ScriptError("an evaluation's batch_size is a whole number: how it is cut changes nothing that is trained")
        check(policy, slices=count, samples=samples)
    _check_batch(samples, policy.reference, count, train=train, tail=tail, where=" in every job.loader(...)" if earlier else "")
    return Arguments(
        dataset=cast(IndexedDataset, dataset),
        samples=samples,
        policy=policy,
        slices=count,
        train=bool(train),
        tail=tail,
        shuffle=bool(train if shuffle is None else shuffle),
        reduction=reduction,
        collate=collate,
        prefetch=prefetch,
    )


def prefetch(
    *,
    num_workers: int,
    prefetch_factor: int | None,
    persistent_workers: bool,
    worker_init_fn: Callable[[int], None] | None,
    timeout: float,
    multiprocessing_context: object,
    pin_memory: bool,
) -> Prefetch:
    """Checks DataLoader's arguments about reading ahead."""
    workers = _whole("num_workers", num_workers, least=0)
    _check_flag("persistent_workers", persistent_workers)
    _check_flag("pin_memory", pin_memory)
    check_callable("worker_init_fn", worker_init_fn)
    factor = 2 if prefetch_factor is None else _whole("prefetch_factor", prefetch_factor, least=1)
    _check_timeout(timeout)
    context = _context(multiprocessing_context)
    given = {
        "prefetch_factor": prefetch_factor,
        "persistent_workers": persistent_workers,
        "timeout": timeout,
        "multiprocessing_context": multiprocessing_context,
    }
    alone = next((name for name, value in given.items() if value), None)
    if not workers and alone is not None:
        raise ScriptError(
            f"{alone}={given[alone]!r} is about processes that read ahead, and num_workers=0 has none: "
            f"give num_workers= as well, or leave {alone}= out"
        )
    return Prefetch(
        workers=workers,
        factor=factor,
        persistent=bool(persistent_workers),
        init=worker_init_fn,
        timeout_s=timeout,
        context=context,
        pin_memory=bool(pin_memory),
    )


def check_callable(name: str, value: object) -> None:
    """Refuses what is neither a function nor None."""
    if value is not None and not callable(value):
        raise ScriptError(f"{name}={value!r} is a {type(value).__name__}: give a function, or leave it out")


def fitting(batch: int, slices: int) -> int:
    """The largest number of slices, up to `slices`, that cuts a batch into equal parts: a power of two if that is at least half."""
    largest = next(k for k in range(min(slices, batch), 0, -1) if batch % k == 0)
    power = batch & -batch
    while power > slices:
        power //= 2
    return power if 2 * power >= slices else largest


def _unknown(name: str) -> str:
    near = [MEANT[name]] if name in MEANT else difflib.get_close_matches(name, KNOWN, n=1)
    hint = f"did you mean {near[0]}=?" if near else f"it knows {', '.join(KNOWN[1:])}"
    return f"job.loader does not know {name}=: {hint}"


def _whole(name: str, value: object, *, least: int) -> int:
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ScriptError(f"{name}={value!r}: give a whole number of at least {least}")
    return number


def _check_timeout(timeout: object) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout < 0:
        raise ScriptError(f"timeout={timeout!r}: seconds to wait for a slice, 0 for ever")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool") and value not in (0, 1):
        raise ScriptError(f"{name}={value!r}: give True or False")


def _context(context: object) -> str | BaseContext | None:
    ways = multiprocessing.get_all_start_methods()
    if isinstance(context, str) and context not in ways:
        raise ScriptError(f"multiprocessing_context={context!r}: this system has {', '.join(ways)}")
    if context is None or isinstance(context, str) or _is_context(context):
        return context
    raise ScriptError(f"multiprocessing_context={context!r}: give one of {', '.join(ways)}, or multiprocessing.get_context(...)")


def _is_context(value: object) -> TypeGuard[BaseContext]:
    return hasattr(value, "Process")


def _tail(tail: str | None, drop_last: bool | None, *, train: bool) -> str:
    if drop_last is not None:
        _check_flag("drop_last", drop_last)
        meant = "drop" if drop_last else "keep"
        if tail is not None and tail != meant:
            raise ScriptError(
                f"drop_last={drop_last!r} means tail={meant!r}, and tail={tail!r} was given too: give only one of them"
            )
        return meant
    if tail is None:
        return "drop" if train else "keep"
    if tail not in TAILS:
        raise ScriptError(f"tail={tail!r}: an epoch's last, short batch is either dropped or kept: tail='drop' or tail='keep'")
    return tail


def _slices(slices: int | None, earlier: int) -> int:
    given = requested_slices(slices)
    if given is None:
        return earlier or SLICES
    if not _is_int(given) or given < 1:
        raise ScriptError(f"slices={given!r}: a step has at least one slice; leave slices= out for the default of {SLICES}")
    if earlier and given != earlier:
        raise ScriptError(
            f"slices={given} here and {earlier} in an earlier loader: all loaders of a job have one number; write "
            f"slices={given} in the earlier one too"
        )
    return given


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_batch(batch_size: int | Policy | None, slices: int) -> int | Policy:
    if batch_size is None:
        raise ScriptError(
            "job.loader needs a batch_size, the number of samples in a step over all workers: job.loader(dataset, "
            "batch_size=256). Where each item of the dataset is a batch already, give every slice one item: "
            f"batch_size={slices}, slices={slices}, collate_fn=lambda items: items[0]"
        )
    if isinstance(batch_size, bool):
        return batch_size
    try:
        return operator.index(cast(SupportsIndex, batch_size))
    except TypeError:
        return batch_size


def _check_batch(samples: int, batch: int, slices: int, *, train: bool, tail: str, where: str) -> None:
    if batch < 1:
        raise ScriptError(f"batch_size={batch}: a step needs at least one sample")
    if not train:
        return
    if batch < slices:
        raise ScriptError(
            f"batch_size={batch} is smaller than slices={slices}, and each slice needs a sample: "
            f"use slices={batch}{where}, or batch_size={slices} or more"
        )
    if batch % slices:
        below, above, fit = batch // slices * slices, -(-batch // slices) * slices, fitting(batch, slices)
        other = f"slices={fit}{where}, or " if fit > 1 else ""
        raise ScriptError(
            f"batch_size={batch} cannot be cut into slices={slices} equal parts: use {other}batch_size={below} or {above}"
        )
    if samples < batch and tail == "drop":
        raise ScriptError(
            f"the dataset has {samples} samples, fewer than batch_size={batch}, and tail='drop' drops them all: "
            "lower batch_size or use tail='keep'"
        )


MOST_SLICES = 4096
MAX_GROWTH = 16
"""An adaptive batch without a bound of its own grows to at most this many times the script's."""


def requested_slices(script: int | None) -> int | None:
    """The number of slices: the script's, or that of `STRETTO_SLICES`; None if neither gives one."""
    text = os.environ.get("STRETTO_SLICES", "").strip()
    if not text:
        return script
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_SLICES:
        raise ScriptError(f"STRETTO_SLICES={text!r} is not a number of slices: use 1 to {MOST_SLICES}, or leave it out")
    if script is not None and script != int(text):
        raise ScriptError(
            f"slices={script} in job.loader(...), and the job was started with {text}: give only one of them "
            "(elastic.slices of the job file, STRETTO_SLICES)"
        )
    return int(text)


def requested_batch(script: int | Policy, *, slices: int, samples: int) -> int | Policy:
    """The training batch: the script's own policy, or its number of samples with the policy of `STRETTO_BATCH`."""
    kind = os.environ.get("STRETTO_BATCH", "").strip()
    if isinstance(script, bool) or not isinstance(script, int) or kind in ("", "fixed"):
        return script
    if kind == "linear":
        return PerWorker(script)
    if kind == "adaptive":
        return Adaptive(start=script, at_most=max(script, min(MAX_GROWTH * script, samples // slices * slices)))
    raise ScriptError(f"STRETTO_BATCH={kind!r} is unknown: use fixed, linear or adaptive")
