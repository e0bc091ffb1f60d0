"""Exactly once, proved from the journals of a job: pure functions from records to what is wrong with them.

Every agent writes what its workers report, so a step is in the journal of each host that had a worker in it, and a host that was
lost may have the only copy of its last steps. `merge` puts the records of one attempt together by step and reports where two hosts
differ; `audit` checks one sequence of records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stretto.core.journal import Commit, Digests, End, EpochEnd, LoaderLine, Orders, Record, Resume, Start, lives
from stretto.core.sample_order import order_id
from stretto.core.text import quantity

FINDINGS = 50
"""How many are reported at most: one fault tends to repeat in every later step."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What a journal proves. `findings` is empty if and only if every promise that can be checked from it held."""

    steps: int
    epochs: int
    samples: int
    digests: int
    findings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.findings


def audit(records: Iterable[Record]) -> Audit:
    """Every sample of every finished epoch in exactly one committed step, no gap in steps, equal digests. All workers mean the same
    samples: the order that each tells of is the one that the loader's seed gives."""
    kept = lives(records)
    commits = [record for record in kept if isinstance(record, Commit)]
    digests = [record for record in kept if isinstance(record, Digests)]
    loaders = {record.loader: record for record in kept if isinstance(record, LoaderLine)}
    finished = sorted({(record.loader, record.epoch) for record in kept if isinstance(record, EpochEnd)})
    by_epoch: dict[tuple[int, int], list[Commit]] = {key: [] for key in finished if _trains(loaders, key[0])}
    for commit in commits:
        by_epoch.setdefault((commit.loader, commit.epoch), []).append(commit)
    lines = [record for record in kept if isinstance(record, LoaderLine)]
    differing = [record for record in kept if isinstance(record, Orders)]
    findings = [
        *_steps(commits, untrained=_untrained(kept)),
        *_digests(digests),
        *_end(kept, commits),
        *_orders(lines, commits, differing),
    ]
    for key, group in sorted(by_epoch.items()):
        findings += _epoch(key, group, loader=loaders.get(key[0]), finished=key in finished)
    checked = [key for key in by_epoch if key in finished]
    return Audit(
        steps=len(commits),
        epochs=len(checked),
        samples=sum(commit.count for commit in commits),
        digests=len(digests),
        findings=tuple(findings[:FINDINGS]),
    )


def _trains(loaders: dict[int, LoaderLine], name: int) -> bool:
    return name not in loaders or loaders[name].train


def _untrained(records: Sequence[Record]) -> bool:
    """A run that finished without a training step: it only evaluated."""
    ends = [record for record in records if isinstance(record, End)]
    return bool(ends) and ends[-1].state == "finished" and ends[-1].steps == 0


def _steps(commits: Sequence[Commit], *, untrained: bool) -> Iterator[str]:
    if not commits:
        if not untrained:
            yield "no step was committed: there is nothing to prove"
        return
    if commits[0].step not in (0, 1):
        yield f"the first committed step is {commits[0].step}: the steps before it are missing"
    for before, after in itertools.pairwise(commits):
        if after.step == before.step:
            yield f"step {after.step} was committed twice"
        elif after.step != before.step + 1:
            yield f"step {after.step} follows step {before.step}: the numbers have a gap"


def _digests(digests: Sequence[Digests]) -> Iterator[str]:
    for record in digests:
        if not record.equal or len(set(record.digests.values())) > 1:
            listed = ", ".join(f"{worker} {value[:12]}" for worker, value in sorted(record.digests.items()))
            yield f"the workers' states differ after step {record.step}: {listed}"


def _orders(lines: Sequence[LoaderLine], commits: Sequence[Commit], differing: Sequence[Orders]) -> Iterator[str]:
    """Places in an epoch's order are proof only if everybody has the same order. Old journals do not have it."""
    for record in differing:
        listed = ", ".join(f"{worker} {order}" for worker, order in sorted(record.orders.items()))
        yield f"epoch {record.epoch} of loader {record.loader}: workers read its samples in different orders: {listed}"
    orders_of: dict[tuple[int, int], set[str]] = {}
    for commit in commits:
        orders = orders_of.setdefault((commit.loader, commit.epoch), set())
        if commit.order and commit.order not in orders:
            orders.add(commit.order)
            yield from _order(commit, [record for record in lines if record.loader == commit.loader])
            if len(orders) > 1:
                yield f"epoch {commit.epoch} of loader {commit.loader}: step {commit.step} has another order of samples than before"


def _order(commit: Commit, lines: Sequence[LoaderLine]) -> Iterator[str]:
    expected = {
        order_id(seed=line.seed, loader=line.loader, epoch=commit.epoch, samples=line.samples, shuffle=line.shuffle): line.seed
        for line in lines
    }
    if lines and commit.order not in expected:
        seeds = ", ".join(str(seed) for seed in expected.values())
        yield (
            f"step {commit.step} of epoch {commit.epoch}: the order of its samples is {commit.order}, the loader's "
            f"(seed {seeds}) is {', '.join(expected)}"
        )


def _end(records: Sequence[Record], commits: Sequence[Commit]) -> Iterator[str]:
    """A finished run says how many steps it had; a journal with fewer has lost its last lines."""
    ends = [record for record in records if isinstance(record, End)]
    if ends and ends[-1].state == "finished" and ends[-1].steps != len(commits) and commits:
        yield f"the run ended after {quantity(ends[-1].steps, 'step')}, the journal has {len(commits)}"


def _epoch(key: tuple[int, int], commits: Sequence[Commit], *, loader: LoaderLine | None, finished: bool) -> Iterator[str]:
    name, epoch = key
    where = f"epoch {epoch} of loader {name}"
    if loader is None:
        yield f"{where}: the journal does not say how many samples the loader has"
        return
    place = 0
    for commit in sorted(commits, key=lambda commit: commit.first):
        if commit.first < place:
            yield f"{where}: samples {commit.first}..{place - 1} are in step {commit.step} and in an earlier one"
        elif commit.first > place:
            yield f"{where}: samples {place}..{commit.first - 1} are in no step before step {commit.step}"
        place = max(place, commit.first + commit.count)
    if place > loader.samples:
        yield f"{where}: place {place - 1} is beyond its {quantity(loader.samples, 'sample')}"
    if finished:
        yield from _tail(where, place, loader, batch=commits[-1].batch if commits else loader.batch)


def _tail(where: str, place: int, loader: LoaderLine, *, batch: int) -> Iterator[str]:
    missing = loader.samples - place
    if loader.tail == "keep" and missing > 0:
        yield f"{where}: the last {missing} of {loader.samples} samples are in no committed step"
    elif loader.tail != "keep" and missing >= batch:
        yield (
            f'{where}: {missing} of {loader.samples} samples are in no committed step; tail="drop" may leave at most {batch - 1}'
        )


def merge(journals: Mapping[str, Sequence[Record]]) -> tuple[list[Record], list[str]]:
    """One sequence of records, as a single agent that saw everything would have written it, and what does not fit together."""
    findings = [text for host, records in journals.items() for text in _cut_short(host, records)]
    attempts: dict[int, dict[str, list[Record]]] = {}
    for host, records in journals.items():
        for life, part in _split(records).items():
            attempts.setdefault(life, {})[host] = part
    merged: list[Record] = []
    for life in sorted(attempts):
        records, wrong = _one_attempt(attempts[life])
        merged += records
        findings += wrong
    return merged, findings


def _cut_short(host: str, records: Sequence[Record]) -> Iterator[str]:
    """An agent says at its end how many steps it has told of, those before its last life included."""
    ends = [record for record in records if isinstance(record, End)]
    resumes = [record for record in records if isinstance(record, Resume)]
    before = resumes[-1].finished if resumes else 0
    steps = {record.step for record in records if isinstance(record, Commit) and record.step >= before}
    if ends and ends[-1].state == "finished" and before + len(steps) < ends[-1].steps:
        yield (
            f"the journal of {host} has {quantity(before + len(steps), 'step')}, its end says {ends[-1].steps}: its lines were lost"
        )


def _split(records: Sequence[Record]) -> dict[int, list[Record]]:
    attempts: dict[int, list[Record]] = {}
    life = 1
    for record in records:
        if isinstance(record, Start | Resume):
            life = record.life
        attempts.setdefault(life, []).append(record)
    return attempts


def _one_attempt(parts: Mapping[str, Sequence[Record]]) -> tuple[list[Record], list[str]]:
    resumes = [record for records in parts.values() for record in records if isinstance(record, Resume)]
    commits: dict[int, tuple[str, Commit]] = {}
    findings: list[str] = []
    for host, records in parts.items():
        for commit in (record for record in records if isinstance(record, Commit)):
            other, first = commits.setdefault(commit.step, (host, commit))
            if first.order != commit.order and first.order and commit.order:
                findings.append(
                    f"step {commit.step} has other samples on {other} (order {first.order}) than on {host} ({commit.order})"
                )
            elif _place(first) != _place(commit):
                findings.append(f"step {commit.step} is told differently by {other} {_place(first)} and by {host} {_place(commit)}")
    kept = LoaderLine | EpochEnd | Digests | Orders
    others = [record for records in parts.values() for record in records if isinstance(record, kept)]
    ordered = [record for _, (_, record) in sorted(commits.items())]
    begun = min(resumes, key=lambda record: record.step, default=None)
    return [*([begun] if begun is not None else []), *ordered, *others], findings


def _place(commit: Commit) -> tuple[int, ...]:
    return (commit.loader, commit.epoch, commit.first, commit.count, commit.batch)
