"""The job server's side of the verbs that also exist for local runs, and what they print."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stretto.cli.server_options import OutputFormat, ago, client, number, show, show_next, span, table
from stretto.core.text import quantity

TAIL = 256 * 1024

if TYPE_CHECKING:
    from stretto.server.models import Job, JobSummary


def ps(*, server: str | None, all: bool = False, output: OutputFormat = OutputFormat.TABLE, **_: object) -> None:
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
    why = job.error or job.note or job.reason
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


def one(*, run: str, server: str | None, output: OutputFormat = OutputFormat.TABLE, **_: object) -> None:
    """`stretto show JOB`."""
    with client(server) as ask:
        found = ask.job(run)
    if not show(found, output):
        describe(found)


def describe(job: Job) -> None:
    progress = job.progress
    lines: list[tuple[str, object]] = [
        ("id", job.id),
        ("name", job.name),
        ("state", job.state),
        ("tenant", job.tenant),
        ("workers", f"{job.workers} training, {job.wanted} given, {job.min} to {job.max} allowed"),
        ("wish", f"{job.wish}{' (pinned)' if job.pinned else ''}" if job.wish else "-"),
        ("step", f"{progress.step}" + (f" of {progress.steps}" if progress.steps else "")),
        ("left", span(progress.remaining_s)),
        ("loss", number(progress.loss)),
        ("samples/s", number(progress.samples_per_s)),
        ("changes", f"{job.resizes} of its size, {job.pause_ms:.0f} ms paused in all; {quantity(job.restarts, 'restart')}"),
        ("submitted", f"{ago(job.submitted_at)} ago"),
        ("digest", job.digest or "-"),
        ("why", job.reason or "-"),
    ]
    if job.note:
        lines.append(("note", job.note))
    if job.error:
        lines.append(("error", job.error))
    table(("", ""), lines)


def logs(
    *,
    run: str,
    server: str | None,
    follow: bool = False,
    worker: str | None = None,
    output: OutputFormat = OutputFormat.TABLE,
    **_: object,
) -> None:
    """What the job's agent printed, or one worker's own log."""
    source = "console" if worker is None else "agent" if worker == "agent" else f"worker-{worker.removeprefix('w')}"
    with client(server) as ask:
        if not follow:
            part = ask.log(run, source=source, tail=TAIL)
            if not show(part, output):
                sys.stdout.write(part.text)
            return
        for text in ask.follow(run, source=source):
            if output is not OutputFormat.TABLE:
                show_next({"source": source, "text": text}, output)
                continue
            sys.stdout.write(text)
            sys.stdout.flush()


def scale(
    *, run: str, workers: int, server: str | None, pin: bool = False, output: OutputFormat = OutputFormat.TABLE, **_: object
) -> None:
    """A wish; with `pin` exactly that many; 0 gives wish and pin back to the policy."""
    with client(server) as ask:
        found = ask.change(run, wish=None) if workers == 0 else ask.scale(run, workers, pin=pin)
    if not show(found, output):
        what = "is left to the policy" if workers == 0 else f"is {'pinned to' if pin else 'wished to have'} {workers}"
        print(f"{found.name} {what}; it has {found.workers} now")


def resume(*, run: str, server: str | None, output: OutputFormat = OutputFormat.TABLE, **_: object) -> None:
    change(server, run, "resume", output=output)


def change(server: str | None, job: str, verb: str, *, output: OutputFormat = OutputFormat.TABLE) -> None:
    """`pause`, `resume`, `cancel`."""
    with client(server) as ask:
        found: Job = getattr(ask, verb)(job)
    if not show(found, output):
        print(f"{found.name} is {found.state}")


def explain(*, run: str, server: str | None, output: OutputFormat = OutputFormat.TABLE, **_: object) -> None:
    with client(server) as ask:
        found = ask.explain(run)
    if show(found, output):
        return
    print(found.sentence)
    for line in found.would_change:
        print(f"would change it: {line}")
