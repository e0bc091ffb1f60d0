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
    ends = [one for one in records if isinstance(one, End)]
    resumes = [one for one in records if isinstance(one, Resume)]
    before = resumes[-1].finished if resumes else 0
    told = {one.step for one in records if isinstance(one, Commit) and one.step >= before}
    if ends and ends[-1].state == "finished" and before + len(told) < ends[-1].steps:
        yield (
            f"the journal of {host} has {quantity(before + len(told), 'step')}, its end says {ends[-1].steps}: its lines were lost"
        )


def _split(records: Sequence[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    life = 1
    for one in records:
        if isinstance(one, Start | Resume):
            life = one.life
        found.setdefault(life, []).append(one)
    return found


def _one_life(parts: Mapping[str, Sequence[Record]]) -> tuple[list[Record], list[str]]:
    resumes = [one for records in parts.values() for one in records if isinstance(one, Resume)]
    commits: dict[int, tuple[str, Commit]] = {}
    findings: list[str] = []
    for host, records in parts.items():
        for one in (record for record in records if isinstance(record, Commit)):
            other, first = commits.setdefault(one.step, (host, one))
            if first.order != one.order and first.order and one.order:
                findings.append(f"step {one.step} has other samples on {other} (order {first.order}) than on {host} ({one.order})")
            elif _place(first) != _place(one):
                findings.append(f"step {one.step} is told differently by {other} {_place(first)} and by {host} {_place(one)}")
    rest = [one for records in parts.values() for one in records if isinstance(one, LoaderLine | EpochEnd | Digests | Orders)]
    ordered = [one for _, (_, one) in sorted(commits.items())]
    begun = min(resumes, key=lambda one: one.step, default=None)
    return [*([begun] if begun is not None else []), *ordered, *rest], findings


def _place(commit: Commit) -> tuple[int, ...]:
    return (commit.loader, commit.epoch, commit.first, commit.count, commit.batch)
