"""`stretto submit`: a job file, or a command line."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from stretto.cli.options import Output, OutputFormat, Server
from stretto.cli.printing import show
from stretto.cli.scripts import stray_flags, stray_hint
from stretto.cli.targets import client
from stretto.core.errors import UsageError


def command(
    context: Context,
    what: Annotated[
        list[str], Argument(metavar="job.yaml | -- python train.py …", help="A job file, or a command.", show_default=False)
    ],
    *,
    workers: Annotated[
        str | None,
        Option(
            "--workers",
            "-w",
            metavar="N|A:B",
            help="Number of workers, or fewest:most; overrides the job file.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, Option(help="The job's name [default: the script's].", show_default=False)] = None,
    env: Annotated[
        list[str] | None, Option("--env", "-e", metavar="KEY=VALUE", help="An environment variable.", show_default=False)
    ] = None,
    workdir: Annotated[Path | None, Option(help="The working directory [default: the current one].", show_default=False)] = None,
    priority: Annotated[int | None, Option(help="-100 to 100.", show_default=False)] = None,
    deadline: Annotated[str | None, Option(help="A duration such as 2h, or a time.", show_default=False)] = None,
    key: Annotated[str | None, Option(help="Repeating a submit with the same key is harmless.", show_default=False)] = None,
    plain: Annotated[bool, Option("--plain", help="Run the command as it is, as one process that is never scaled.")] = False,
    wait: Annotated[bool, Option("--wait", help="Return when the job has ended; exit code 1 unless it has finished.")] = False,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    _hint(context, what)
    fields = _job(what, workers=workers, name=name, workdir=workdir)
    fields["envs"] = {**fields.get("envs", {}), **_envs(env or [])}
    if plain:
        fields["plain"] = True
    if priority is not None:
        fields["priority"] = priority
    if deadline is not None:
        fields["deadline"] = _deadline(deadline)
    with client(server) as ask:
        job = ask.submit(fields, key=key)
        if wait:
            job = ask.wait(job.id)
    if not show(job, output):
        print(f"{job.id} {job.name}: {job.state}" + (f": {job.error}" if job.error else ""))
    if job.note:
        print(f"warning: {job.note}", file=sys.stderr)
    if wait and job.state != "finished":
        raise SystemExit(1)


def _hint(context: Context, what: list[str]) -> None:
    """Flags of ours behind the script are the script's own: said, in case they were not meant to be."""
    script = next((word for word in what if word.endswith(".py")), None)
    if script is not None:
        behind = what[what.index(script) + 1 :]
        if flags := stray_flags(context, script, behind):
            print(f"hint: {stray_hint('stretto submit', f'-- python {script}', flags, name=script)}", file=sys.stderr)


def _job(what: list[str], *, workers: str | None, name: str | None, workdir: Path | None) -> dict[str, Any]:
    first = Path(what[0])
    if first.is_dir():
        raise UsageError(f"{what[0]} is a folder: name a job file, or a command after --")
    if first.suffix in (".yaml", ".yml", ".json"):
        from stretto.server.jobs.jobfile import read_job_file

        if len(what) > 1:
            raise UsageError(f"{what[0]} is a job file, what follows it is not used: {' '.join(what[1:])}")
        fields = read_job_file(first).model_dump(mode="json")
        if fields["workdir"] is None:
            fields["workdir"] = str(first.absolute().parent)
    else:
        fields: dict[str, Any] = {"name": _name(what), "run": what, "workdir": os.getcwd()}
    if workers is not None:
        from stretto.agent.options import parse_workers

        least, most = parse_workers(workers)
        if not 1 <= least <= most:
            raise UsageError(f"--workers {workers} allows no number: write the fewest, then the most, as in --workers 1:4")
        fields["elastic"] = {**fields.get("elastic", {}), "min": least, "max": most}
    if name is not None:
        fields["name"] = name
    if workdir is not None:
        fields["workdir"] = str(workdir.absolute())
    return fields


def _name(words: list[str]) -> str:
    """The default name, from the script: `python my_train.py` gives `my-train`."""
    script = next((word for word in words if word.endswith(".py")), words[0])
    return re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:48] or "job"


def _envs(pairs: list[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            lacks = "'='" if key else "name before '='"
            raise UsageError(f"--env {pair!r} has no {lacks}: write --env KEY=VALUE")
        variables[key] = value
    return variables


def _deadline(text: str) -> float:
    import time

    from stretto.server.jobs.jobfile import deadline

    try:
        return deadline(text, now=time.time())
    except ValueError as error:
        raise UsageError(f"--deadline {error}") from None
