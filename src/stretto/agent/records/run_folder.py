"""The run folder: `runs/NAME/` with what was asked for, the journal, the logs and the result."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from stretto.core.errors import RunNotFound, UsageError
from stretto.core.files import replacing
from stretto.core.journal import Record, parse
from stretto.core.json_types import JsonObject, to_object

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
AUTOMATIC = 100_000
"""So many runs of one script in one folder are numbered by themselves."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run. The folder exists; the files in it may not yet."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def request(self) -> Path:
        return self.path / "run.json"

    @property
    def control(self) -> Path:
        return self.path / "control.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, number: int) -> Path:
        return self.logs / f"worker-{number}.log"

    def records(self) -> list[Record]:
        """The journal so far."""
        with contextlib.suppress(FileNotFoundError):
            return parse(self.journal.read_bytes())
        return []

    def read(self, path: Path) -> JsonObject | None:
        """One of the folder's JSON files, or None if it is not there (yet)."""
        try:
            return to_object(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UsageError(f"{path} is not valid JSON ({error}): was it edited by hand?") from error


def create(runs: Path, *, name: str | None, script: str, stem: str | None = None) -> RunFolder:
    """A new folder for a run. A name is used once; without one, the script's is numbered, or the stem where it was used before."""
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r} cannot name a run: use letters, digits, '.', '_' and '-', at most 100, "
            "and begin with a letter or a digit"
        )
    try:
        runs.mkdir(parents=True, exist_ok=True)
        path = _named(runs, name) if name is not None else _numbered(runs, script) if stem is None else _again(runs, stem)
        (path / "logs").mkdir()
    except OSError as error:
        raise UsageError(
            f"the run folder cannot be made in {runs}: {error.strerror}: choose another place with --runs DIR"
        ) from error
    return RunFolder(path)


def discard(folder: RunFolder) -> None:
    """A folder of a run that was refused before it began."""
    with contextlib.suppress(OSError):
        folder.logs.rmdir()
        folder.path.rmdir()


def _named(runs: Path, name: str) -> Path:
    path = runs / name
    try:
        path.mkdir()
    except FileExistsError:
        raise UsageError(f"there is a run named {name!r} in {runs} already: choose another --name, or remove {path}") from None
    return path


def _again(runs: Path, stem: str) -> Path:
    for number in range(1, AUTOMATIC):
        with contextlib.suppress(FileExistsError):
            path = runs / (stem if number == 1 else f"{stem}-{number}")
            path.mkdir()
            return path
    raise UsageError(f"{runs} has {AUTOMATIC} runs named {stem}: remove some, or choose a --name")


def _numbered(runs: Path, script: str) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", Path(script).stem).lstrip("._-")[:80] or "run"
    for number in range(1, AUTOMATIC):
        with contextlib.suppress(FileExistsError):
            path = runs / f"{stem}-{number}"
            path.mkdir()
            return path
    raise UsageError(f"{runs} has {AUTOMATIC} runs of {script}: remove some, or choose a --name")


def find(run: str, *, runs: Path) -> RunFolder:
    """The folder of a run, by its name or by its path; by its script's name, the last run of that script."""
    for path in (runs / run, Path(run), *_numbers(runs, run)):
        if (path / "run.json").is_file():
            return RunFolder(path)
    latest = [folder.name for folder in every(runs)][-5:]
    there = f"it has {', '.join(latest)}" if latest else "it has no runs"
    names = [folder.name for folder in every(runs)]
    stems = [name.rpartition("-")[0] for name in names]
    close = get_close_matches(run.removesuffix(".py"), [*names, *stems], n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise RunNotFound(f"there is no run {run!r} in {runs} ({there}): {meant}see `stretto ps`, or name the folder with --runs DIR")


def _numbers(runs: Path, stem: str) -> list[Path]:
    """The runs that `_numbered` has made for a script, the last first."""
    paths = [path for path in runs.glob("*-*") if re.fullmatch(re.escape(stem) + r"-[1-9]\d{0,5}", path.name)]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def every(runs: Path) -> Iterator[RunFolder]:
    """All runs of a folder, the oldest first."""
    if not runs.is_dir():
        return
    paths = [path for path in runs.iterdir() if (path / "run.json").is_file()]
    for path in sorted(paths, key=lambda path: ((path / "run.json").stat().st_mtime, path.name)):
        yield RunFolder(path)


def write_json(path: Path, document: Mapping[str, object], *, mode: int = 0o644) -> None:
    """Whole or not at all: readers never see half of it."""
    text = json.dumps(document, indent=1, default=str) + "\n"
    with replacing(path, mode=mode) as file:
        file.write(text.encode())
