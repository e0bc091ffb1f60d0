"""The same scripts under `stretto run`, while workers come, go and are killed: what became of them, and whether it may be so."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launching import Launched, environment, gone
from plain import Ended, comparable

from stretto.core.audit import audit
from stretto.core.errors import UsageError
from stretto.core.journal import Checkpoint, Commit

GUARD_S = 150.0
"""A run that takes longer hangs: each takes a few seconds."""
QUIET_S = 60.0
"""A run without a new step for so long hangs, too."""
FAST, SLOW = 0.01, 0.25
"""Seconds that each pass takes longer: until the next event, and while a newcomer is on its way."""


@dataclass(frozen=True)
class Change:
    """What happens to a run once it has committed a step."""

    step: int
    kind: str
    """`scale`, `kill` (one worker), or `resume` (everything is killed and goes on from its checkpoint)."""
    workers: int = 1
    """How many there are to be; for `kill`, which one of those who are there."""


def random_schedule(seed: int, *, steps: int, resumes: bool = True) -> tuple[Change, ...]:
    """A join in the middle of the run, then up to three more changes."""
    chance = random.Random(seed)
    last = max(2, steps - 6)
    places = sorted(chance.sample(range(last), min(last, chance.randint(2, 4))))
    changes = [Change(places[0], "scale", chance.choice([2, 2, 3]))]
    for place in places[1:]:
        kind = chance.choices(["scale", "kill", "resume"], [3, 3, 2 if resumes else 0])[0]
        changes.append(Change(place, kind, chance.randint(0, 2) if kind == "kill" else chance.randint(1, 3)))
    return tuple(changes)


def set_pace(file: Path, seconds: float) -> None:
    """At once: workers read it at any time."""
    new = file.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(file)


class Hang(AssertionError):
    """A run that makes no progress."""


@dataclass
class Run:
    """A launched run that a schedule happens to."""

    launched: Launched
    pace: Path
    story: list[str] = field(default_factory=list)
    lives: list[subprocess.Popen[str]] = field(default_factory=list)

    def happen(self, change: Change) -> None:
        """Waits for the change's step and makes it."""
        with contextlib.suppress(UsageError):
            if not self._wait(lambda: self._committed() >= change.step):
                return
            set_pace(self.pace, SLOW)
            {"scale": self._scale, "kill": self._kill, "resume": self._resume}[change.kind](change)
            self.story.append(f"step {self._committed()}: {change.kind} {change.workers}")
        set_pace(self.pace, FAST)

    def end(self) -> int:
        set_pace(self.pace, FAST)
        self._wait(lambda: False)
        return self.launched.process.returncode

    def kill(self) -> None:
        """Ends what is left of a run that hangs."""
        for process in (self.launched.process, *self.lives):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()

    def _committed(self) -> int:
        return max((commit.step for commit in self.launched.commits()), default=-1)

    def _wait(self, what: Callable[[], bool]) -> bool:
        """True once something is so, False if the run ends before."""
        deadline, quiet, seen = time.monotonic() + GUARD_S, time.monotonic() + QUIET_S, -1
        while self.launched.process.poll() is None:
            if what():
                return True
            now, last = time.monotonic(), len(self.launched.commits())
            if last != seen:
                seen, quiet = last, now + QUIET_S
            if now > deadline or now > quiet:
                records = self.launched.records()[-5:]
                self.kill()
                raise Hang(f"no progress since {seen} commits; {self.story}; the last records: {records}")
            time.sleep(0.02)
        return what()

    def _status(self) -> dict[str, Any]:
        return self.launched.ask("status")

    def _settled(self, workers: int) -> bool:
        try:
            status = self._status()
        except UsageError:
            return False
        return status["settled"] and status["members"] >= workers

    def _scale(self, change: Change) -> None:
        before = len(self.launched.events("refused", "misplaced"))
        self.launched.ask("scale", workers=change.workers)
        self._wait(lambda: self._settled(change.workers) or len(self.launched.events("refused", "misplaced")) > before)

    def _kill(self, change: Change) -> None:
        """Spares the last holder of the state: without a checkpoint its death would be the end."""
        self._wait(lambda: self._settled(1))
        status = self._status()
        pids = [one["pid"] for one in sorted(status["workers"], key=lambda one: one["worker"]) if one["pid"]]
        if status["members"] < 2 or len(pids) < 2:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[change.workers % len(pids)], signal.SIGKILL)
        self._wait(lambda: self._settled(2))

    def _resume(self, change: Change) -> None:
        folder = self.launched.folder
        if not self._wait(lambda: any(isinstance(one, Checkpoint) for one in self.launched.records())):
            return
        try:
            pids = list(self.launched.pids().values())
        except UsageError:
            pids = []
        for pid in (self.launched.process.pid, *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.launched.process.wait()
        deadline = time.monotonic() + GUARD_S
        while not all(gone(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        if folder.result.exists():
            return
        with open(folder.path.parent / f"{folder.name}.out", "a") as out:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "stretto.cli.main",
                    "resume",
                    "--runs",
                    str(folder.path.parent),
                    "--workers",
                    f"1:{max(3, change.workers)}",
                    folder.name,
                ],
                cwd=folder.path.parent.parent,
                env=environment({"STRETTO_FAILPOINT_PACE": f"header:{self.pace}"}),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.launched = Launched(process, folder)
        self.lives.append(process)
        self._wait(lambda: self._settled(1))
        if change.workers > 1:
            self._scale(change)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    code: int
    digest: str
    output: str
    story: tuple[str, ...]
    commits: tuple[Commit, ...]
    findings: tuple[str, ...]
    refusals: str
    """What newcomers were told that were not let in."""

    def wrong(self, reference: Ended, *, why: str = "") -> str:
        """What breaks the rule: another result, or a wrong step that was committed; empty where all is well.

        A run either ends like plain `python`, or is refused (`why` is part of the message) before its first wrong step.
        """
        for commit in self.commits if reference.commits is not None else ():
            expected = reference.commits.get(commit.step)
            committed = comparable(commit)
            if expected != committed:
                return f"step {commit.step} was committed as {committed}, under plain python it is {expected}"
        if self.code == 0:
            if self.digest != reference.digest:
                return f"the digest is {self.digest}, that of plain python {reference.digest}"
            return f"the audit finds {self.findings}" if self.findings else ""
        if "Traceback" in self.output:
            return "it ended with a traceback"
        return "" if why and why in self.output else f"it was refused, and not for {why!r}"


def run(
    launch: Callable[..., Launched],
    text: str,
    *,
    folder: Path,
    name: str = "job",
    workers: str = "1:3",
    start: int = 1,
    changes: tuple[Change, ...] = (),
    options: tuple[str, ...] = (),
) -> Outcome:
    """Launches a script, lets a schedule happen to it, and waits for its end."""
    pace = folder / f"{name}.pace"
    set_pace(pace, FAST)
    if any(change.kind == "resume" for change in changes):
        options = (*options, "--checkpoint", str(folder / f"{name}.saved"), "--checkpoint-every", "3")
    launched = launch(
        text,
        "--workers",
        workers,
        "--start",
        str(start),
        "--max-restarts",
        "50",
        *options,
        name=name,
        env={"STRETTO_FAILPOINT_PACE": f"header:{pace}"},
    )
    running = Run(launched, pace)
    try:
        for change in changes:
            running.happen(change)
        code = running.end()
    finally:
        running.kill()
    launched = running.launched
    records = launched.records()
    result = launched.folder.read(launched.folder.result) or {}
    events = launched.events("refused", "misplaced")
    return Outcome(
        code=code,
        digest=str(result.get("digest")),
        output=launched.output(),
        story=tuple(running.story),
        commits=tuple(one for one in records if isinstance(one, Commit)),
        findings=audit(records).findings,
        refusals="\n".join(event.text for event in events),
    )
