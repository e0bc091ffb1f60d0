"""Runs whose digests are recorded, and the canary that says whether a machine can be compared.

    python tests/bits/record_digests.py

writes tests/bits/recorded_digests.json anew, from the sources in src/, in half a minute. Do that only for a change that is meant
to change bits, and say so in CHANGELOG.md: checkpoints of older versions then go on with other bits too.

Bits of PyTorch on CPU depend on the instruction set, the BLAS library and the number of threads. Every run here has the settings
of `SETTINGS`, under which most x86-64 machines agree. The canary shows whether a machine does: it computes the same operations in
plain PyTorch, without stretto. A machine whose canary has other digests computes other bits by itself and proves nothing about
stretto.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = Path(__file__).with_name("recorded_digests.json")
SETTINGS = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
GUARD_S = 240.0
"""Only against hanging for ever."""

LICENSE = str(ROOT / "LICENSE")
"""The text of examples/chars.py: its default are pages, which change."""
RUNS: dict[str, tuple[str, ...]] = {
    "digits": ("examples/digits.py", "--epochs", "2"),
    "chars": ("examples/chars.py", "--epochs", "1", "--text", LICENSE),
    "gan": ("examples/gan.py", "--epochs", "2"),
    "mixed": ("examples/mixed.py", "--epochs", "2"),
    "zoo": ("tests/bits/zoo.py", "--epochs", "2"),
}
"""A script and its arguments, by name."""
OTHER_SEED = ("examples/digits.py", "--epochs", "2", "--seed", "1")
"""The control: its digest must be another one than that of `digits`."""
LINE = re.compile(r"^(?:\[[^\]]*\] )?(\w+):? ([0-9a-f]{16,64}|\[\(.*\)\])$", re.MULTILINE)
"""What the scripts print: `digest 01ab…`; in the zoo, `mlp: 01ab…` for each model and `eval: […]` for its metrics."""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200", **SETTINGS}


def canary() -> dict[str, str]:
    """Digests of plain PyTorch on this machine, by operation."""
    return json.loads(_output([sys.executable, str(Path(__file__).with_name("canary.py"))]))


def plain_python(script: str, *args: str) -> dict[str, str]:
    """What a script prints under plain python: its digests by name."""
    return _digests(_output([sys.executable, str(ROOT / script), *args]))


def two_workers(script: str, *args: str) -> dict[str, str]:
    """The same from `stretto run` with two workers."""
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "stretto.cli.main", "run", "--runs", folder, "--no-tensorboard", "--workers", "2"]
        return _digests(_output([*run, str(ROOT / script), *args]))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=GUARD_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _digests(output: str) -> dict[str, str]:
    digests = dict(LINE.findall(output))
    if not digests:
        raise RuntimeError(f"no digest in this output:\n{output}")
    if "eval" in digests:
        digests["eval"] = hashlib.sha256(digests["eval"].encode()).hexdigest()[:16]
    return digests


def main() -> None:
    recorded = {"canary": canary(), "runs": {name: plain_python(*run) for name, run in RUNS.items()}}
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"written: {RECORDED}")


if __name__ == "__main__":
    main()
