"""What every benchmark ends with: a table on the screen and rows in benchmarks/results/NAME.json.

A row is `{name, value, bar, holds, peers}`: `value` is a ratio or a figure, `bar` what it is held against, `holds`
whether it does (None for a row that only informs), `peers` what the others took in the same run.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(os.environ.get("BENCH_RESULTS") or ROOT / "benchmarks" / "results")
"""Another folder, for trials that must not replace results of a quiet machine."""
Peers = Mapping[str, object]
PACKAGES = ("torch", "numpy", "scipy", "torchft")


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float | None
    """None if it could not be measured: such a row never holds."""
    bar: str
    holds: bool | None
    peers: Peers = field(default_factory=lambda: {})


def at_most(name: str, value: float | None, bound: float, *, bar: str = "", peers: Peers | None = None) -> Row:
    """A row that holds when the value is at most the bound."""
    return Row(name, value, bar or f"≤ {bound:g}", value is not None and value <= bound, peers or {})


def at_least(name: str, value: float | None, bound: float, *, bar: str = "", peers: Peers | None = None) -> Row:
    """A row that holds when the value is at least the bound."""
    return Row(name, value, bar or f"≥ {bound:g}", value is not None and value >= bound, peers or {})


def inform(name: str, value: float | None, *, peers: Peers | None = None) -> Row:
    """A row without a bar."""
    return Row(name, value, "", None, peers or {})


def publish(name: str, rows: Sequence[Row], *, notes: Sequence[str] = (), folder: Path = RESULTS) -> Path:
    """Prints the table and writes the JSON. Returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    document = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "commit": _commit(),
        "notes": list(notes),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
    show(name, rows, notes=notes)
    print(f"written to {os.path.relpath(path)}")
    return path


def show(name: str, rows: Sequence[Row], *, notes: Sequence[str] = ()) -> None:
    from rich.console import Console
    from rich.table import Table

    here = machine()
    table = Table(title=f"{name}  ({here['cpu']}, {here['cores']} cores, load {here['load']})", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("bar")
    table.add_column("holds")
    table.add_column("beside it")
    words = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}
    for row in rows:
        peers = ", ".join(f"{key} {figure(value)}" for key, value in row.peers.items())
        table.add_row(row.name, figure(row.value), row.bar, words[row.holds], peers)
    console = Console(width=None if os.isatty(1) else 160)
    console.print(table)
    for note in notes:
        console.print(f"  {note}", highlight=False)


def machine() -> dict[str, object]:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None


def _commit() -> str | None:
    try:
        run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return run.stdout.strip() or None


def figure(value: object) -> str:
    """Formats a number for people."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
