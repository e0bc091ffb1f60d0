"""The job server's side of the verbs that local runs have too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stretto.cli.options import OutputFormat
from stretto.cli.printing import ago, number, show, show_next, span, table
from stretto.cli.targets import client
from stretto.core.text import quantity

TAIL_BYTES = 256 * 1024

if TYPE_CHECKING:
    from stretto.server.models import JobDetails, JobSummary


def ps(server: str | None, output: OutputFormat, *, all: bool) -> None:
    """Lists jobs that have not ended; with `all`, all jobs."""
    with client(server) as api:
        jobs = [job for job in api.jobs() if all or not job.state.ended]
    if show(jobs, output):
        return
    if not jobs:
        hint = "`stretto submit --workers 1:4 -- python train.py`"
        print(f"no jobs: {hint}" if all else "no jobs; `stretto ps --all` shows ended ones")
        return
    titles = ("id", "name", "state", "workers", "step", "left", "loss", "samples/s", "age", "why")
    table(titles, [job_row(job) for job in jobs], right=("step", "left"))


def job_row(job: JobSummary) -> tuple[object, ...]:
    """A job as a line of `ps`."""
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


def show_job(name: str, server: str | None, output: OutputFormat) -> None:
    """`stretto show JOB`."""
    with client(server) as api:
        job = api.job(name)
    if not show(job, output):
        describe(job)


def describe(job: JobDetails) -> None:
    """Prints a job, one fact per line."""
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


def logs(name: str, server: str | None, output: OutputFormat, *, follow: bool, worker: str | None) -> None:
    """Prints the output of the job's agent, or of one worker."""
    source = "console" if worker is None else "agent" if worker == "agent" else f"worker-{worker.removeprefix('w')}"
    with client(server) as api:
        if not follow:
            part = api.log(name, source=source, tail=TAIL_BYTES)
            if not show(part, output):
                sys.stdout.write(part.text)
            return
        for text in api.follow(name, source=source):
            if output is not OutputFormat.TABLE:
                show_next({"source": source, "text": text}, output)
                continue
            sys.stdout.write(text)
            sys.stdout.flush()


def scale(name: str, workers: int, server: str | None, output: OutputFormat, *, pin: bool) -> None:
    """Sets the wanted number of workers. `pin` makes it exact; 0 removes wish and pin."""
    with client(server) as api:
        job = api.change(name, wish=None) if workers == 0 else api.scale(name, workers, pin=pin)
    if not show(job, output):
        change = "is left to the policy" if workers == 0 else f"is {'pinned to' if pin else 'asked to have'} {workers}"
        print(f"{job.name} {change}; it has {job.workers} now")


def resume(name: str, server: str | None, output: OutputFormat) -> None:
    """Puts a paused job back into the queue."""
    with client(server) as api:
        job = api.resume(name)
    print_state(job, output)


def print_state(job: JobDetails, output: OutputFormat) -> None:
    """Prints a job after its state was changed."""
    if not show(job, output):
        print(f"{job.name} is {job.state}")


def explain(name: str, server: str | None, output: OutputFormat) -> None:
    """Says why a job has its size, and what would change it."""
    with client(server) as api:
        explanation = api.explain(name)
    if show(explanation, output):
        return
    print(explanation.sentence)
    for line in explanation.would_change:
        print(f"would change it: {line}")
