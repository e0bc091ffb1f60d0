"""The options of a run: its workers, limits, checkpoints and script. Checked before anything is started."""

from __future__ import annotations

import json
import os
import re
import uuid
import warnings
import zipfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from stretto.agent.hosts.store_options import StoreOptions
from stretto.agent.workers.stall_detection import STALL_S
from stretto.batching.autoscale import AutoscaleConfig, parse_autoscale
from stretto.batching.stragglers import parse_mode
from stretto.core.errors import UsageError
from stretto.core.journal import Start
from stretto.core.json_types import JsonObject
from stretto.core.version import VERSION
from stretto.train.checkpoint.catalog import claim
from stretto.train.checkpoint.storage import open_storage

EVERY = "100"
KEEP = 3
_EVERY = re.compile(r"(\d+)|(\d+(?:\.\d+)?)(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
NOT_SCRIPTS = {
    ".yaml": "is a job file, not a script: give it to a server with `stretto submit {}`",
    ".yml": "is a job file, not a script: give it to a server with `stretto submit {}`",
    ".ipynb": "is a notebook, not a script: save it as one with `jupyter nbconvert --to script {}`",
    ".sh": "is a shell script: name the Python script that it starts",
}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where and how often a run saves. `run_id` tells runs of the same name apart: a folder has the checkpoints of one run."""

    url: str
    every_steps: int | None = None
    every_s: float | None = None
    keep: int = KEEP
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def claim(self, run: str) -> None:
        """Raises `UsageError` if the folder cannot be written or belongs to another run."""
        claim(open_storage(self.url), run=run, run_id=self.run_id)

    def for_workers(self, *, run: str, life: int, grace_s: float) -> JsonObject:
        return {**asdict(self), "run": run, "life": life, "grace_s": grace_s}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One job on one agent. Checked by `validate`, written to `run.json`."""

    script: str
    args: tuple[str, ...] = ()
    least: int = 1
    """The fewest workers that the job may be started with, and may be scaled to."""
    most: int = 1
    start: int | None = None
    """How many to begin with; the fewest where nothing is said."""
    name: str | None = None
    runs: Path = Path("runs")
    threads: int = 1
    """Intra-op threads of every worker: a property of the job, because it changes bits."""
    max_restarts: int = 3
    digest_every: int = 0
    hang_timeout_s: float | None = None
    slice_timeout_s: float = 10.0
    stall_timeout_s: float = STALL_S
    """The least time without progress after which the job counts as stalled; more where steps are slow."""
    grace_s: float = 30.0
    """How long a graceful stop may take before the workers are killed."""
    allow_mixed: bool = False
    tensorboard: bool = True
    agent: str = "a0"
    host: str = "127.0.0.1"
    """The address that this agent's workers listen on for each other."""
    checkpoints: Checkpoints | None = None
    autoscale: str | None = None
    """How the job sizes itself: the text of --autoscale."""
    price: float | None = None
    worth: str | None = None
    stragglers: str = "rebalance"
    shared: StoreOptions | None = None
    """Where the job has other hosts too."""
    extra: JsonObject = field(default_factory=lambda: {})
    """Further options that workers are given as they are."""

    @property
    def wanted(self) -> int:
        """On several hosts as many as they have room for, because hosts are what is added and taken away there; a job that sizes
        itself begins with the fewest anywhere."""
        if self.start is not None:
            return self.start
        return self.least if self.shared is None or self.autoscale is not None else self.most

    def sizing(self) -> AutoscaleConfig | None:
        """How the job sizes itself, if it does. Raises `UsageError`."""
        if self.autoscale is None:
            if self.price is not None or self.worth is not None:
                raise UsageError("--price and --worth go with --autoscale utility")
            return None
        return parse_autoscale(self.autoscale, least=self.least, most=self.most, price=self.price, worth=self.worth)

    def validate(self) -> None:
        parse_mode(self.stragglers)
        if self.shared is not None:
            self.shared.validate()
        if not os.path.isfile(self.script):
            kind = "is a folder, not a script" if os.path.isdir(self.script) else "does not exist"
            raise UsageError(f"{self.script} {kind}: name the training script, from {os.getcwd()} or with its whole path")
        check_script(self.script)
        if not 1 <= self.least <= self.most:
            raise UsageError(
                f"--workers {self.least}:{self.most} is not a range of workers: the fewest must be at least 1 "
                "and not above the most, as in --workers 1:4"
            )
        if not self.least <= self.wanted <= self.most:
            raise UsageError(f"--start {self.wanted} is outside --workers {self.least}:{self.most}: choose a number between")
        self.sizing()
        for flag, value, bound in (
            ("--threads", self.threads, 1),
            ("--max-restarts", self.max_restarts, 0),
            ("--digest-every", self.digest_every, 0),
        ):
            if value < bound:
                raise UsageError(f"{flag} {value} is too small: it must be at least {bound}")
        for flag, seconds in (
            ("--hang-timeout", self.hang_timeout_s),
            ("--slice-timeout", self.slice_timeout_s),
            ("--stall-timeout", self.stall_timeout_s),
            ("--grace", self.grace_s),
        ):
            if seconds is not None and seconds <= 0:
                raise UsageError(f"{flag} {seconds:g} is too short: it must be more than 0 seconds")

    def to_dict(self) -> dict[str, object]:
        return {
            **asdict(self),
            "args": list(self.args),
            "runs": str(self.runs),
            "cwd": os.getcwd(),
            "shared": self.shared.to_dict() if self.shared is not None else None,
        }

    @staticmethod
    def from_dict(document: JsonObject) -> RunOptions:
        """Of a run.json, which has more in it."""
        if "script" not in document:
            raise UsageError(f"the run.json of {document.get('name', 'this run')!r} names no script: was it edited by hand?")
        values: dict[str, Any] = {field.name: document[field.name] for field in fields(RunOptions) if field.name in document}
        saved, shared = values.get("checkpoints"), values.get("shared")
        values["args"] = tuple(values.get("args", ()))
        values["runs"] = Path(values.get("runs", "runs"))
        values["checkpoints"] = Checkpoints(**saved) if saved else None
        values["shared"] = StoreOptions.from_dict(shared) if shared else None
        return RunOptions(**values)

    def start_line(self, *, life: int, mode: str = "") -> Start:
        """The journal's line for the beginning of an attempt."""
        workers = {"least": self.least, "most": self.most, "wanted": self.wanted}
        return Start(self.script, tuple(self.args), workers, life, VERSION, mode)

    def for_workers(self, *, run: str = "", life: int = 1, resume: int | None = None) -> str:
        """STRETTO_OPTIONS. `resume` is the step of the checkpoint that the run goes on from."""
        options: JsonObject = {
            "threads": self.threads,
            "digest_every": self.digest_every,
            "allow_mixed": self.allow_mixed,
            "host": self.host,
            **self.extra,
        }
        if self.checkpoints is not None:
            options["checkpoint"] = self.checkpoints.for_workers(run=run, life=life, grace_s=self.grace_s)
            if resume:
                options["resume"] = {"url": self.checkpoints.url, "step": resume}
        return json.dumps(options)


def parse_workers(text: str) -> tuple[int, int]:
    """`3` or `1:4`."""
    low, sign, high = text.partition(":")
    try:
        return int(low), int(high if sign else low)
    except ValueError:
        raise UsageError(f"--workers {text!r} is neither a number nor a range: write --workers 2 or --workers 1:4") from None


def parse_checkpoints(url: str | None, *, every: str | None, keep: int) -> Checkpoints | None:
    """The flags' options; None without --checkpoint."""
    if url is None:
        if every is not None:
            raise UsageError(f"--checkpoint-every {every} says how often, but not where to: add --checkpoint DIR")
        return None
    if keep < 1:
        raise UsageError(f"--keep {keep} is too small: the last complete checkpoint is never deleted, so it is at least 1")
    match = _EVERY.fullmatch(every or EVERY)
    steps = int(match.group(1)) if match and match.group(1) else None
    seconds = float(match.group(2)) * _SECONDS[match.group(3)] if match and match.group(2) else None
    if not steps and not seconds:
        raise UsageError(f"--checkpoint-every {every!r} is neither a number of steps nor a time: write 100, 30s or 5m")
    if not url.strip():
        raise UsageError("--checkpoint is empty: name a folder or a URL")
    where = url if "://" in url else str(Path(url).absolute())
    return Checkpoints(where, steps, seconds, keep)


def check_script(script: str) -> None:
    """Refuses a script that Python could not run, with the line: a worker would notice only after it has loaded torch."""
    suffix = Path(script).suffix.lower()
    if suffix in NOT_SCRIPTS:
        raise UsageError(f"{script} {NOT_SCRIPTS[suffix].format(script)}")
    try:
        text = Path(script).read_bytes()
    except OSError as error:
        raise UsageError(f"{script} cannot be read: {error.strerror}") from None
    if suffix == ".pyc" or zipfile.is_zipfile(script):
        return
    if b"\0" in text:
        raise UsageError(f"{script} is not a Python script: it has NUL bytes in it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise UsageError(f"{script}:{error.lineno or 1}: {type(error).__name__}: {error.msg}{line}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{script} cannot be compiled: {error or type(error).__name__}") from None
