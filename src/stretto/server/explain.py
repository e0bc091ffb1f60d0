"""Why a job has this size or waits, in a sentence: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.server.known import Known
from stretto.server.models import Competitor, Explanation, JobState
from stretto.server.snapshot import limits
from stretto.server.state import Record

MOST_NAMED = 5


def explain(
    record: Record,
    known: Known,
    *,
    others: Sequence[Record],
    knowns: Mapping[str, Known],
    slots: int,
    now: float,
    reason: str,
    decision: int | None,
    alarm: str | None,
    tenant: str | None,
) -> Explanation:
    """`tenant` is who asks: jobs of other tenants are counted, not named. None sees all."""
    held = [other for other in others if other.id != record.id and other.wanted > 0]
    competing = _competitors(held, tenant)
    least, most, why = limits(record, step=known.step)
    sentence, constraint, change = _say(record, least, most, why, held, competing, slots, reason)
    if alarm and record.state in (JobState.QUEUED, JobState.RUNNING):
        sentence += f" The last decision failed and sizes were kept: {alarm}."
        constraint = "alarm" if record.state is JobState.QUEUED else constraint
    return Explanation(
        job=record.id,
        sentence=sentence,
        constraint=constraint,  # type: ignore[arg-type]
        competing=competing,
        expected_start=_expected_start(record, held, knowns, least, slots, now),
        expected_finish=_expected_finish(record, known, now),
        would_change=change,
        decision=decision,
        t=now,
    )


def _competitors(held: Sequence[Record], tenant: str | None) -> list[Competitor]:
    """The largest first; other tenants' jobs as one line."""
    own = sorted((one for one in held if tenant in (None, one.tenant)), key=lambda one: -one.wanted)
    lines = [Competitor(job=one.id, name=one.name, workers=one.wanted) for one in own[:MOST_NAMED]]
    rest = sum(one.wanted for one in own[MOST_NAMED:])
    if rest:
        lines.append(Competitor(job="more", name=f"{len(own) - MOST_NAMED} more jobs", workers=rest))
    other = sum(one.wanted for one in held if tenant not in (None, one.tenant))
    if other:
        lines.append(Competitor(job="other", name="jobs of other tenants", workers=other))
    return lines


def _named(competing: Sequence[Competitor]) -> str:
    names = [f"'{one.name}' ({one.workers})" if one.job.startswith("j-") else f"{one.name} ({one.workers})" for one in competing]
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] if names else "nobody"


def _say(
    record: Record,
    least: int,
    most: int,
    why: str,
    held: Sequence[Record],
    competing: Sequence[Competitor],
    slots: int,
    reason: str,
) -> tuple[str, str, list[str]]:
    name = f"'{record.name}'"
    tail = f" ({reason})" if reason else ""
    used = sum(other.wanted for other in held)
    match record.state:
        case JobState.FINISHED:
            return f"{name} has finished.", "ended", []
        case JobState.FAILED:
            return (
                f"{name} has failed: {record.error or 'no reason was given'}.",
                "ended",
                ["submit it again once the cause is gone"],
            )
        case JobState.CANCELLED:
            return f"{name} was cancelled.", "ended", []
        case JobState.PAUSED | JobState.PAUSING:
            return f"{name} is {record.state}: it holds its place and no slots.", "paused", [f"`stretto resume {record.id}`"]
        case JobState.CANCELLING:
            return f"{name} is being cancelled: its workers stop at the next step boundary.", "ended", []
        case JobState.QUEUED:
            return _say_queued(name, least, slots, used, competing, tail, pinned=why == "pinned")
        case JobState.STARTING:
            workers = _count(record.wanted, "worker")
            return f"{name} is starting on {workers}: no step is committed yet{tail}.", "starting", ["its first step"]
        case _:
            return _say_running(record, least, most, why, competing, slots - used, tail)


def _say_queued(
    name: str, least: int, slots: int, used: int, competing: Sequence[Competitor], tail: str, *, pinned: bool
) -> tuple[str, str, list[str]]:
    if least > slots:
        kind = "is pinned to" if pinned else "needs at least"
        text = f"{name} waits and will not start: it {kind} {_count(least, 'worker')}, the cluster has {_count(slots, 'slot')}."
        return text, "minimum", ["a smaller elastic.min", f"nodes with at least {least} slots in all"]
    free = max(0, slots - used)
    if free >= least:
        return (
            f"{name} waits for the next decision: {_count(free, 'slot')} free, it needs {least}{tail}.",
            "policy",
            ["the next decision"],
        )
    text = (
        f"{name} waits: it needs {_count(least, 'slot')}, {free} of {slots} free; the others belong to {_named(competing)}{tail}."
    )
    change = [f"one of {_named(competing)} ends or shrinks", "a higher priority", f"{least - free} more slots"]
    return text, "slots", change


def _say_running(
    record: Record, least: int, most: int, why: str, competing: Sequence[Competitor], free: int, tail: str
) -> tuple[str, str, list[str]]:
    name, has = f"'{record.name}'", _count(record.wanted, "worker")
    moving = f", {record.workers} of them train yet" if record.workers < record.wanted else ""
    if why == "plan":
        return f"{name} has {has}{moving}: its scaling plan says so.", "plan", ["the plan's next line"]
    if why == "pinned":
        return f"{name} has {has}{moving}: it is pinned there.", "pinned", [f"`stretto scale {record.id} 0` frees it"]
    if record.wanted >= most:
        if why == "wish":
            return f"{name} has {has}{moving}: that is what was wished for.", "wish", [f"`stretto scale {record.id} N`"]
        return f"{name} has {has}{moving}: that is its maximum.", "maximum", ["a larger elastic.max"]
    if competing and record.wanted - record.workers >= 0 and free - record.wanted <= 0:
        text = f"{name} has {has} of at most {most}{moving}: the other slots belong to {_named(competing)}{tail}."
        return text, "slots", [f"one of {_named(competing)} ends or shrinks", "a higher priority"]
    return f"{name} has {has} of at most {most}{moving}{tail or ': more would not pay, says the policy'}.", "policy", [
        "a changed model or progress of the job", f"`stretto scale {record.id} {most}`"]  # fmt: skip


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _expected_start(
    record: Record, held: Sequence[Record], knowns: Mapping[str, Known], least: int, slots: int, now: float
) -> float | None:
    """When enough slots are expected to be free: now, or when enough of the others have finished."""
    if record.state is not JobState.QUEUED or least > slots:
        return record.started_at
    free = slots - sum(other.wanted for other in held)
    if free >= least or sum(max(0, other.wanted - other.spec.elastic.min) for other in held) + free >= least:
        return now
    ends = sorted(
        (remaining, other.wanted)
        for other in held
        if (remaining := knowns[other.id].progress(steps=other.spec.steps).remaining_s) is not None
    )
    for remaining, workers in ends:
        free += workers
        if free >= least:
            return now + remaining
    return None


def _expected_finish(record: Record, known: Known, now: float) -> float | None:
    if record.state.ended:
        return record.ended_at
    if record.state is not JobState.RUNNING:
        return None
    remaining = known.progress(steps=record.spec.steps).remaining_s
    return None if remaining is None else now + remaining
