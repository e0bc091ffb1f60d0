"""Reads a tutorial and does what it says: saves its files, types its commands, compares what they print.

Two conventions make a tutorial runnable:

- "Save this as `train.py`:" before a block means that the block is that file;
- in a `console` block, `$ ` begins a command and the lines below it are what it prints. `…` stands for anything within
  a line; a line with nothing but `…` for any number of lines. A command without lines below it may print anything.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
GUARD_S = 240.0
"""Only against hanging for ever: the machine may be busy."""
PATIENCE_S = 120.0
"""How long a command is typed again until it prints what the page shows."""
MARK = "--- the command has ended with"
BLOCK = re.compile(r"(?:Save this as `(?P<file>[^`]+)`:\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SavedFile:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    prints: str


def actions(page: str) -> Iterator[SavedFile | Command]:
    """What the reader does, in order."""
    for block in BLOCK.finditer(page):
        if block["file"]:
            yield SavedFile(block["file"], block["text"])
        elif block["kind"] == "console":
            for command in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                first, _, prints = command.partition("\n")
                yield Command(first, prints)


def matches(output: str, prints: str) -> bool:
    """Whether the output is what the page shows. Blanks at the ends of lines do not count."""
    lines = [line.rstrip() for line in prints.strip("\n").splitlines()]
    if not any(lines):
        return True
    pattern = "".join("(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n" for line in lines)
    shown = "".join(f"{line.rstrip()}\n" for line in output.strip("\n").splitlines())
    return re.fullmatch(pattern, shown) is not None


class Shell:
    """One bash for a whole tutorial, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("STRETTO_", "COLUMNS"))}
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            env={**clean, "PATH": paths, "PYTHONPATH": str(SOURCE), "HOME": str(folder), "COLUMNS": "100"},
        )

    def run(self, command: str) -> tuple[int, str]:
        """The command's exit code and what it printed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\nprintf '\\n{MARK} %d\\n' $?\n".encode())
        self.process.stdin.flush()
        output = ""
        deadline = time.monotonic() + GUARD_S
        while (end := re.search(rf"\n{MARK} (\d+)\n", output)) is None:
            output += self._read(deadline, command, output)
        return int(end[1]), output[: end.start()]

    def _read(self, deadline: float, command: str, output: str) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(deadline - time.monotonic(), 0.0))
        text = os.read(self.process.stdout.fileno(), 1 << 16).decode() if ready else ""
        assert text, f"`{command}` did not end; it has printed:\n{output}"
        return text

    def close(self) -> None:
        """Ends the shell, and everything that was started in its folder."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for _ in range(20):
            left = [pid for pid in _processes() if _belongs(pid, self.folder)]
            for pid in left:
                _kill(pid)
            if not left:
                return
            time.sleep(0.2)


def follow(page: str, shell: Shell) -> int:
    """Does what the page says; the number of commands whose output was compared.

    A reader waits until a run has started: a command that fails, or prints something else, is typed again for a while.
    """
    compared = 0
    for action in actions(page):
        if isinstance(action, SavedFile):
            (shell.folder / action.name).write_text(action.text)
            continue
        deadline = time.monotonic() + PATIENCE_S
        code, output = shell.run(action.text)
        while (code != 0 or not matches(output, action.prints)) and time.monotonic() < deadline:
            time.sleep(0.5)
            code, output = shell.run(action.text)
        assert code == 0, f"`{action.text}` ended with {code}:\n{output}"
        assert matches(output, action.prints), f"`{action.text}` printed:\n{output}\ninstead of:\n{action.prints}"
        compared += bool(action.prints.strip())
    return compared


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != os.getpid()]


def _belongs(pid: int, folder: Path) -> bool:
    try:
        return f"HOME={folder}\0" in Path(f"/proc/{pid}/environ").read_text()
    except (OSError, UnicodeDecodeError):
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
