"""`stretto audit`: exactly once, proved from the journal."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from typer import Exit

from stretto.cli.common import Json, Run, Runs, emit, folder_of
from stretto.core.audit import Audit, audit
from stretto.core.errors import UsageError
from stretto.core.journal import Parser


def command(run: Run, *, runs: Runs = None, json: Json = False) -> None:
    folder = folder_of(run, runs)
    try:
        data = folder.journal.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"run {folder.name!r} has no journal at {folder.journal}: it was never started") from None
    parser = Parser()
    found = _with_result(audit(parser.feed(data)), folder.read(folder.result))
    if json:
        emit({"run": folder.name, "holds": found.holds, **asdict(found), "torn": parser.torn, "skipped": parser.skipped})
    else:
        print(f"{folder.name}: {found.steps} committed steps, {found.epochs} finished epochs, {found.samples} samples, "
              f"{found.digests} comparisons of digests")
        if parser.skipped:
            print(f"{parser.skipped} lines of the journal could not be read (cut off by a crash)")
        for finding in found.findings:
            print(f"WRONG: {finding}")
        if found.holds:
            print("holds: every sample of every finished epoch is in exactly one committed step, steps have no gap, "
                  "and wherever digests were taken they were equal")
    raise Exit(0 if found.holds else 1)


def _with_result(found: Audit, result: dict[str, Any] | None) -> Audit:
    """A journal that lost its end (a full disk) is consistent in itself; the result knows better."""
    steps = found.steps if result is None else int(result.get("steps", found.steps))
    if steps == found.steps:
        return found
    return replace(found, findings=(*found.findings, f"the result says {steps} steps, the journal has {found.steps}"))
