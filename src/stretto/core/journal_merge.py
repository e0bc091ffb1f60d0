"""The journals of a job's hosts as one: pure.

Every agent writes what it hears, so a step is in the journal of each host that had a worker in it, and a host that was lost may
have the only copy of its last ones. Records of one life are put together by step; what two hosts tell differently is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stretto.core.journal import Commit, Digests, End, EpochEnd, LoaderLine, Orders, Record, Resume, Start
from stretto.core.text import quantity


def merge(journals: Mapping[str, Sequence[Record]]) -> tuple[list[Record], list[str]]:
    """One sequence of records, as a single agent that saw everything would have written it, and what does not fit together."""
    findings = [text for host, records in journals.items() for text in _cut_short(host, records)]
    lives: dict[int, dict[str, list[Record]]] = {}
    for host, records in journals.items():
        for life, part in _split(records).items():
            lives.setdefault(life, {})[host] = part
    merged: list[Record] = []
    for life in sorted(lives):
        records, wrong = _one_life(lives[life])
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
    lives: dict[int, list[Record]] = {}
    life = 1
    for record in records:
        if isinstance(record, Start | Resume):
            life = record.life
        lives.setdefault(life, []).append(record)
    return lives


def _one_life(parts: Mapping[str, Sequence[Record]]) -> tuple[list[Record], list[str]]:
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
