"""Why a job has this size or waits, in a sentence: which constraint, who competes, when it should start and finish, and what would
change it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stretto.clusters.base import NodeInfo
from stretto.core.text import quantity
from stretto.server.decisions.forecast import Forecast, ForecastRequest, before, forecast
from stretto.server.decisions.snapshot import limits, never, usable_nodes
from stretto.server.jobs.command import note
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import JobRecord
from stretto.server.models import Competitor, Explanation, JobState
from stretto.server.models.jobs import Constraint

MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Scene:
    """The facts that a sentence is made of."""

    record: JobRecord
    least: int
    most: int
    why: str
    """What has narrowed the limits: `plan`, `pinned`, `wish`, `autoscale` or nothing."""
    slots: int
    free: int
    competing: Sequence[Competitor]
    reason: str
    """The policy's reason."""
    quota: int | None
    steps: int = 0
    """Steps that it has committed."""
    never: str = ""
    """Why it can never run."""
    shrink: bool = True
    """Whether one of the jobs that hold slots can shrink."""

    @property
    def name(self) -> str:
        return f"'{self.record.name}'"

    @property
    def others(self) -> str:
        names = [
            f"'{job.name}' ({job.workers})" if job.job.startswith("j-") else f"{job.name} ({job.workers})" for job in self.competing
        ]
        return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] if names else "nobody"

    @property
    def room(self) -> str:
        """What would free slots."""
        names = self.others if len(self.competing) < 2 else f"one of {self.others}"
        return f"{names} ends or shrinks" if self.shrink else f"{names} ends"

    @property
    def note(self) -> str:
        """That its command is no stretto script, unless its job file says that this is meant."""
        words = note(self.record.spec, state=self.record.state, steps=self.steps)
        return f"; {words}" if words else ""

    @property
    def tail(self) -> str:
        words = self.reason.removeprefix("waits: ")
        return f" ({words})" if words else ""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Why a job has its size: the sentence, the constraint that decides, and what would change it."""

    text: str
    """Without its full stop."""
    constraint: Constraint
    change: tuple[str, ...] = ()


def explain(
    record: JobRecord,
    progress: RunProgress,
    *,
    others: Sequence[JobRecord],
    all_progress: Mapping[str, RunProgress],
    slots: int,
    nodes: Sequence[NodeInfo] = (),
    now: float,
    reason: str,
    decision: int | None,
    alarm: str | None,
    tenant: str | None,
    resizes: bool = True,
    quota: int | None = None,
    lasted: Callable[[JobRecord], float | None] = lambda _: None,
) -> Explanation:
    """`tenant` is the caller's: jobs of other tenants are counted, not named. None sees all. `lasted` is how long jobs of a family
    have trained. `nodes` tell which slots a job with `resources.node_type` can use; without them it can use all."""
    nodes = nodes or (NodeInfo("", slots, record.spec.resources.node_type or ""),)
    usable = usable_nodes(record, nodes)
    slots = min(slots, sum(node.slots for node in usable))
    held = [other for other in others if other.id != record.id and other.wanted > 0]
    own = quota - sum(other.wanted for other in held if other.tenant == record.tenant) if quota is not None else None
    if len(usable) < len(nodes):
        names = {node.name for node in usable}
        held = [other for other in held if names & other.nodes.keys()]
    least, most, why = limits(record, progress)
    free = max(0, slots - record.wanted - sum(other.wanted for other in held))
    shrink = resizes and any(limits(other, all_progress[other.id])[0] < other.wanted for other in held)
    scene = Scene(
        record,
        least,
        most,
        why,
        slots,
        free,
        _competitors(held, tenant),
        reason,
        own,
        steps=progress.step,
        shrink=shrink,
        never=never(record, progress, nodes=nodes, quota=quota),
    )
    reasoning = _reasoning(scene)

    def lasts(job: JobRecord) -> float | None:
        if job.state is JobState.STARTING:
            return None  # it has no speed before its first step, and what it had in another life is not this one's
        left = (progress if job.id == record.id else all_progress[job.id]).remaining_s(steps=job.spec.steps)
        return lasted(job) if left is None and job.started_at is None else left

    request = ForecastRequest(
        slots, now, resizes, lambda job: least if job.id == record.id else limits(job, all_progress[job.id])[0], lasts
    )
    ahead = before(record, others)
    expected = Forecast() if scene.never else forecast(record, held=held, ahead=ahead, request=request)
    sentence = f"{reasoning.text}{_when(record, expected, [*held, *ahead], now, tenant, never=bool(scene.never))}."
    if alarm and record.state in (JobState.QUEUED, JobState.RUNNING):
        sentence += f" The last decision failed and sizes were kept: {alarm}."
    return Explanation(
        job=record.id,
        sentence=sentence,
        constraint="alarm" if alarm and record.state is JobState.QUEUED else reasoning.constraint,
        competing=list(scene.competing),
        expected_start=expected.start,
        expected_finish=expected.finish,
        would_change=list(reasoning.change),
        decision=decision,
        t=now,
    )


def _competitors(held: Sequence[JobRecord], tenant: str | None) -> list[Competitor]:
    """The largest first; other tenants' jobs as one line."""
    own = sorted((job for job in held if tenant in (None, job.tenant)), key=lambda job: -job.wanted)
    lines = [Competitor(job=job.id, name=job.name, workers=job.wanted) for job in own[:MOST_NAMED]]
    rest = sum(job.wanted for job in own[MOST_NAMED:])
    if rest:
        lines.append(Competitor(job="more", name=f"{len(own) - MOST_NAMED} more jobs", workers=rest))
    other = sum(job.wanted for job in held if tenant not in (None, job.tenant))
    if other:
        lines.append(Competitor(job="other", name="jobs of other tenants", workers=other))
    return lines


def _reasoning(scene: Scene) -> Reasoning:
    record, name = scene.record, scene.name
    match record.state:
        case JobState.FINISHED:
            return Reasoning(f"{name} has finished{scene.note}", "ended")
        case JobState.FAILED:
            text = f"{name} has failed: {record.error or 'no reason was given'}"
            return Reasoning(text, "ended", ("submit it again once the cause is gone",))
        case JobState.CANCELLED:
            return Reasoning(f"{name} was cancelled", "ended")
        case JobState.PAUSED | JobState.PAUSING:
            text = f"{name} is {record.state if record.state is JobState.PAUSING else record.pause or 'paused'}"
            text += "; it holds its place and no slots" if record.state is JobState.PAUSED else f": {record.pause}"
            return Reasoning(text, "price" if record.paused_by == "price" else "paused", (f"`stretto resume {record.id}`",))
        case JobState.CANCELLING:
            return Reasoning(f"{name} is being cancelled: its workers stop at the next step boundary", "ended")
        case JobState.QUEUED:
            return _reasoning_queued(scene)
        case JobState.STARTING:
            text = f"{name} is starting on {quantity(record.wanted, 'worker')}: no step is committed yet{scene.tail}"
            return Reasoning(text, "starting", ("its first step",))
        case _:
            return _reasoning_running(scene)


def _reasoning_queued(scene: Scene) -> Reasoning:
    name, least, slots, free = scene.name, scene.least, scene.slots, scene.free
    if scene.never:
        kind = scene.record.spec.resources.node_type
        nodes = "nodes" if kind is None else f"nodes of type '{kind}'"
        change = f"{nodes} with at least {least} slots in all" if least > slots else "a larger --quota"
        fewer = f"`stretto scale {scene.record.id} 0` frees it" if scene.why == "pinned" else "a smaller elastic.min"
        return Reasoning(f"{name} {scene.never}", "minimum" if least > slots else "quota", (fewer, change))
    if scene.quota is not None and scene.quota < least:
        left = max(0, scene.quota)
        whose = f"the quota of tenant '{scene.record.tenant}'"
        text = f"{name} waits: it needs {quantity(least, 'slot')}, {left} are left of {whose}{scene.tail}"
        return Reasoning(text, "quota", ("a job of the same tenant ends or shrinks", "a larger --quota"))
    if free >= least:
        text = f"{name} waits for the next decision: {quantity(free, 'slot')} free, it needs {least}{scene.tail}"
        return Reasoning(text, "policy", ("the next decision",))
    needs = f"it needs {quantity(least, 'slot')}, {free} of {slots} free"
    text = f"{name} waits: {needs}; the others belong to {scene.others}{scene.tail}"
    return Reasoning(text, "slots", (scene.room, "a higher priority", quantity(least - free, "more slot")))


def _reasoning_running(scene: Scene) -> Reasoning:
    record, name, most = scene.record, scene.name, scene.most
    has = quantity(record.wanted, "worker")
    moving = f", {record.workers} of them train yet" if record.workers < record.wanted else ""
    if scene.why == "plain":
        text = f"{name} has {has}, and always will{scene.note or ': it is one plain process, as its job file says'}"
        return Reasoning(text, "plain", ("a `run` that stretto can scale: [python, train.py]",))
    if scene.why == "plan":
        return Reasoning(f"{name} has {has}{moving}: its scaling plan says so", "plan", ("the plan's next line",))
    if scene.why == "pinned":
        return Reasoning(f"{name} has {has}{moving}: it is pinned there", "pinned", (f"`stretto scale {record.id} 0` frees it",))
    if record.wanted >= most and scene.why == "autoscale":
        autoscale = record.spec.elastic.autoscale
        bar = f"{autoscale.efficiency:g}" if autoscale is not None and autoscale.efficiency is not None else "?"
        text = f"{name} has {has}{moving}: no larger size has been measured to reach elastic.autoscale.efficiency={bar}"
        wish = f"`stretto scale {record.id} {record.spec.elastic.max}`"
        return Reasoning(text, "autoscale", ("a lower efficiency", "other measured speeds", wish))
    if record.wanted >= most and scene.why == "refused":
        text = f"{name} has {has}{moving}: workers that joined were refused; `stretto logs {record.id}` says why"
        return Reasoning(text, "refused", (f"`stretto scale {record.id} {record.spec.elastic.max}`, once the cause is gone",))
    if record.wanted >= most and scene.why == "wish":
        return Reasoning(f"{name} has {has}{moving}: this size was asked for", "wish", (f"`stretto scale {record.id} N`",))
    if record.wanted >= most:
        return Reasoning(f"{name} has {has}{moving}: that is its maximum", "maximum", ("a larger elastic.max",))
    if scene.competing and scene.free <= 0:
        text = f"{name} has {has} of at most {most}{moving}: the other slots belong to {scene.others}{scene.tail}"
        return Reasoning(text, "slots", (scene.room, "a higher priority", "more slots"))
    text = f"{name} has {has} of at most {most}{moving}{scene.tail or ': the policy gains nothing from more'}"
    return Reasoning(text, "policy", ("a changed model or progress of the job", f"`stretto scale {record.id} {most}`"))


def _when(
    record: JobRecord, expected: Forecast, others: Sequence[JobRecord], now: float, tenant: str | None, *, never: bool
) -> str:
    """The expected start of a job that waits, and the expected finish, as the end of the sentence."""
    words = ""
    if record.state is JobState.QUEUED and expected.start is not None:
        names = [f"'{job.name}'" for job in others if job.id in expected.after and tenant in (None, job.tenant)]
        room = f", when {' and '.join(names)} should end" if 0 < len(names) <= MOST_NAMED else ""
        words = f"; expected to start {f'in {_span(expected.start - now)}{room}' if expected.after else 'at the next decision'}"
    elif record.state is JobState.QUEUED and not never and (starting := [job for job in others if job.state is JobState.STARTING]):
        names = [f"'{job.name}'" for job in starting if tenant in (None, job.tenant)][:MOST_NAMED]
        have = "have" if len(names) > 1 else "has"
        words = f"; when it can start is not known until {' and '.join(names) or 'what is starting'} {have} trained for a while"
    if not record.state.ended and expected.finish is not None:
        joint = " and to finish" if words else "; expected to finish"
        words += f"{joint} in {_span(expected.finish - now)}"
    return words


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
