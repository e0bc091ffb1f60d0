"""`stretto audit`: exactly once, proved from the journal; of a job on several hosts, from all of their journals together."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Exit

from stretto.agent.records.run_folder import RunFolder, every
from stretto.cli.options import Json, Runs
from stretto.cli.printing import emit
from stretto.cli.targets import folder_of, runs_folder
from stretto.core.audit import FINDINGS, Audit, audit, merge
from stretto.core.errors import RunNotFound, UsageError
from stretto.core.journal import End, Parser, Record, Switch
from stretto.core.json_types import JsonObject, to_object
from stretto.core.text import quantity

NOTHING = 2

Several = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="The run's name or folder; of a job on several hosts, all of its hosts' folders, or the job's name.",
        show_default=False,
    ),
]


RESTART = (
    "restart mode proves nothing about samples: the script reads its data and saves by itself, so neither steps nor samples "
    "are in the journal. For a proof, write the script for stretto (docs/guides/restart-mode.md)"
)


def command(run: Several, *, runs: Runs = None, json: Json = False) -> None:
    """Exit code 0: it holds. 1: it does not. 2: there is nothing that could be audited."""
    folders = _folders(run, runs)
    if (folders[0].read(folders[0].request) or {}).get("restart_mode"):
        _restarting(folders[0], json=json)
    parsers = [Parser() for _ in folders]
    journals = {folder.name: list(parser.feed(_read(folder))) for folder, parser in zip(folders, parsers, strict=True)}
    report = _one(folders[0], journals) if len(folders) == 1 else _together(folders, journals)
    torn, skipped = any(parser.torn for parser in parsers), sum(parser.skipped for parser in parsers)
    name = " ".join(journals)
    if json:
        emit({"run": name, "holds": report.holds, **asdict(report), "torn": torn, "skipped": skipped})
    else:
        print(
            f"{name}: {quantity(report.steps, 'committed step')}, {quantity(report.epochs, 'finished epoch')}, "
            f"{quantity(report.samples, 'sample')}, {quantity(report.digests, 'comparison')} of digests"
        )
        if skipped:
            print(f"{quantity(skipped, 'line')} of the journal could not be read (cut off by a crash)")
        for finding in report.findings:
            print(f"WRONG: {finding}")
        if report.holds:
            print(
                "holds: every sample of every finished epoch is in exactly one committed step, steps have no gap, "
                "and wherever digests were taken they were equal"
            )
    raise Exit(0 if report.holds else 1)


def _restarting(folder: RunFolder, *, json: bool) -> None:
    """Prints what the journal of a run in restart mode shows: its end and its restarts."""
    records = list(Parser().feed(_read(folder)))
    changes = [record for record in records if isinstance(record, Switch) and record.cause != "start"]
    ends = [record.state for record in records if isinstance(record, End)]
    state = ends[-1] if ends else "not ended"
    if json:
        emit({"run": folder.name, "holds": None, "mode": "restart", "state": state, "restarts": len(changes), "text": RESTART})
    else:
        print(f"{folder.name}: {state}; all workers were started anew {quantity(len(changes), 'time')}")
        print(RESTART)
    raise Exit(NOTHING)


def _folders(names: list[str], runs: Path | None) -> list[RunFolder]:
    """The named folders; the name of a job on several hosts stands for all of its folders that are here."""
    if len(names) == 1:
        try:
            return [folder_of(names[0], runs)]
        except RunNotFound:
            here = [(folder, _job(folder)) for folder in every(runs_folder(runs))]
            ours = [(folder, job) for folder, job in here if job.get("name") == names[0]]
            if not ours:
                raise
            return [folder for folder, job in ours if job.get("id") == ours[-1][1].get("id")]
    folders = [folder_of(name, runs) for name in names]
    jobs = {str(_job(folder).get("id", folder.path)) for folder in folders}
    if len(jobs) > 1:
        raise UsageError(f"{', '.join(names)} are not of one job: name the folders of the hosts of one job only")
    return folders


def _job(folder: RunFolder) -> JsonObject:
    return to_object((folder.read(folder.request) or {}).get("job"))


def _read(folder: RunFolder) -> bytes:
    try:
        return folder.journal.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"run {folder.name!r} has no journal at {folder.journal}: it was never started") from None


def _one(folder: RunFolder, journals: dict[str, list[Record]]) -> Audit:
    report = _with_result(audit(journals[folder.name]), folder.read(folder.result))
    if not report.holds and _job(folder):
        more = f"this is one host's journal of job {_job(folder).get('name')!r}: name the folders of its other hosts too"
        report = replace(report, findings=(*report.findings, more))
    return report


def _together(folders: list[RunFolder], journals: dict[str, list[Record]]) -> Audit:
    records, wrong = merge(journals)
    report = audit(records)
    finals = {
        str(result["digest"]): folder.name
        for folder in folders
        if (result := folder.read(folder.result)) and result.get("state") == "finished" and result.get("digest")
    }
    if len(finals) > 1:
        wrong.append(f"hosts have ended with different digests: {', '.join(f'{n} {d[:12]}' for d, n in finals.items())}")
    return replace(report, findings=(*wrong, *report.findings)[:FINDINGS])


def _with_result(report: Audit, result: dict[str, Any] | None) -> Audit:
    """Compares with the result: a journal that lost its end, on a full disk, is consistent in itself."""
    steps = report.steps if result is None else int(result.get("steps", report.steps))
    if steps == report.steps:
        return report
    return replace(
        report, findings=(*report.findings, f"the result says {quantity(steps, 'step')}, the journal has {report.steps}")
    )
