"""Scripts under plain `python`, each forked from a process that has imported torch: a run costs a fraction of a second."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import environment
from oracle import install

GUARD_S = 120.0
"""Only against hanging for ever."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["torch", "torch.distributed", "torch.utils.data", "torch._dynamo", "stretto.train.entry.script_runner"]
)


@dataclass(frozen=True)
class Ended:
    """A script's end under plain `python`."""

    code: int
    output: str
    commits: dict[int, dict[str, Any]] | None
    """What was committed and logged at each training step, if that is known."""

    @property
    def digest(self) -> str:
        assert self.code == 0, self.output
        return self.output.rsplit("digest ", 1)[1].split()[0]


def plain(path: Path, *, cwd: Path, oracle: bool = False) -> Ended:
    """Runs a script to its end in a folder, as `python path` would; with `oracle`, as what it means in PyTorch."""
    if "num_workers" in path.read_text():
        return _fresh(path, cwd=cwd)
    log, trace = cwd / "plain.out", cwd / "plain.trace"
    process = _context.Process(target=_child, args=(str(path), str(cwd), str(log), str(trace), oracle))
    process.start()
    process.join(GUARD_S)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"plain python still runs after {GUARD_S} s: {log.read_text()}")
    assert process.exitcode is not None
    lines = [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []
    return Ended(process.exitcode, log.read_text(), {line["step"]: line for line in lines})


def _fresh(path: Path, *, cwd: Path) -> Ended:
    """In a new interpreter: processes that read samples import the script, which a forked one could not show them."""
    done = subprocess.run(
        [sys.executable, str(path)], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    return Ended(done.returncode, done.stdout + done.stderr, None)


def _child(path: str, cwd: str, log: str, trace: str, oracle: bool) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(cwd)
    sys.argv = [path]
    sys.path.insert(0, str(Path(path).parent))
    for name in [name for name in os.environ if name.startswith("STRETTO_")]:
        del os.environ[name]
    if oracle:
        install(trace)
    else:
        _record_commits(trace)
    code = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _record_commits(trace: str) -> None:
    """Writes each committed step as it would be in a journal."""
    from stretto.train.reporting import AgentReporter

    committed = AgentReporter.committed
    file = open(trace, "w", buffering=1)  # noqa: SIM115

    def recording(self: AgentReporter, step: Any, **fields: Any) -> None:
        committed(self, step, **fields)
        assert self.last_commit is not None
        record = {name: getattr(self.last_commit, name) for name in ("step", "epoch", "loader", "first", "count", "metrics")}
        file.write(json.dumps(record) + "\n")

    AgentReporter.committed = recording  # type: ignore[method-assign]
