"""The job server's side of the verbs that also exist for local runs, and what they print."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stretto.cli.remote import Output, ago, client, number, show, span, table

if TYPE_CHECKING:
    from stretto.server.models import Job, JobSummary


def ps(server: str | None, *, all: bool = False, output: Output = Output.TABLE) -> None:
    """Jobs that have not ended; with `all` the ended ones too."""
    with client(server) as ask:
        found = [job for job in ask.jobs() if all or not job.state.ended]
    if show(found, output):
        return
    if not found:
        print(
            "no jobs: `stretto submit --workers 1:4 -- python train.py`" if all else "no jobs; `stretto ps --all` shows ended ones"
        )
        return
    rows = [row(job) for job in found]
    table(("id", "name", "state", "workers", "step", "left", "loss", "samples/s", "age", "why"), rows, right=("step", "left"))


def row(job: JobSummary) -> tuple[object, ...]:
    progress = job.progress
    workers = f"{job.workers}/{job.wanted} of {job.min}:{job.max}" if not job.state.ended else "-"
    step = f"{progress.step}/{progress.steps}" if progress.steps else progress.step
    why = job.error or job.reason
    return (
        job.id,
        job.name,
        job.state,
        workers,
        step,
        span(progress.remaining_s) if not job.state.ended else "-",
        number(progress.loss),
        number(progress.samples_per_s),
        ago(job.submitted_at),
        why[:80],
    )


def one(server: str | None, job: str, *, output: Output = Output.TABLE) -> None:
    """`stretto show JOB`."""
    with client(server) as ask:
        found = ask.job(job)
    if not show(found, output):
        describe(found)


def describe(job: Job) -> None:
    progress = job.progress
    lines: list[tuple[str, object]] = [
        ("id", job.id), ("name", job.name), ("state", job.state), ("tenant", job.tenant),
        ("workers", f"{job.workers} training, {job.wanted} given, {job.min} to {job.max} allowed"),
        ("wish", f"{job.wish}{' (pinned)' if job.pinned else ''}" if job.wish else "-"),
        ("step", f"{progress.step}" + (f" of {progress.steps}" if progress.steps else "")),
        ("left", span(progress.remaining_s)), ("loss", number(progress.loss)), ("samples/s", number(progress.samples_per_s)),
        ("changes", f"{job.resizes} of its size, {job.pause_ms:.0f} ms paused in all; {job.restarts} restarts"),
        ("submitted", f"{ago(job.submitted_at)} ago"), ("digest", job.digest or "-"), ("why", job.reason or "-"),
    ]  # fmt: skip
    if job.error:
        lines.append(("error", job.error))
    table(("", ""), lines)


def logs(server: str | None, job: str, *, follow: bool = False, source: str = "console", tail: int = 65536) -> None:
    with client(server) as ask:
        if not follow:
            sys.stdout.write(ask.log(job, source=source, tail=tail).text)
            return
        for text in ask.follow(job, source=source):
            sys.stdout.write(text)
            sys.stdout.flush()


def scale(server: str | None, job: str, workers: int | None, *, pin: bool = False, output: Output = Output.TABLE) -> None:
    """A wish; with `pin` exactly that many; without a number the wish is given back to the policy."""
    with client(server) as ask:
        found = ask.change(job, wish=None) if workers is None else ask.scale(job, workers, pin=pin)
    if not show(found, output):
        what = "is left to the policy" if workers is None else f"is {'pinned to' if pin else 'wished to have'} {workers}"
        print(f"{found.name} {what}; it has {found.workers} now")


def change(server: str | None, job: str, verb: str, *, output: Output = Output.TABLE) -> None:
    """`pause`, `resume`, `cancel`."""
    with client(server) as ask:
        found: Job = getattr(ask, verb)(job)
    if not show(found, output):
        print(f"{found.name} is {found.state}")


def explain(server: str | None, job: str, *, output: Output = Output.TABLE) -> None:
    with client(server) as ask:
        found = ask.explain(job)
    if show(found, output):
        return
    print(found.sentence)
    if found.expected_start is not None and found.constraint in ("slots", "policy", "minimum"):
        print(f"expected to start in {ago(found.expected_start)}")
    if found.expected_finish is not None and found.constraint != "ended":
        print(f"expected to finish in {ago(found.expected_finish)}")
    for line in found.would_change:
        print(f"would change it: {line}")
