"""`make demo` from its start to its picture, on a shorter run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_ends_with_equal_digests_and_a_picture(tmp_path: Path) -> None:
    command = [sys.executable, "examples/demo.py", "--models", "digits", "--epochs", "50", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=880, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "the same bits" in done.stdout
    assert "exactly once" in done.stdout
    assert "kill -9" in done.stdout
    assert (tmp_path / "demo" / "digits.png").stat().st_size > 10_000
