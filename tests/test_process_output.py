"""A test that fails because of a process shows what the process wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "checked": "subprocess.run([sys.executable, '-c', PROGRAM], capture_output=True, check=True)",
    "asserted": "done = subprocess.run([sys.executable, '-c', PROGRAM], capture_output=True)\n    assert done.returncode == 0",
}


@pytest.mark.parametrize("case", CASES)
def test_the_standard_error_of_a_process_that_failed_is_in_the_report(tmp_path: Path, case: str) -> None:
    program = "import os, sys; sys.stderr.write('terminate ' + 'called'); sys.stderr.flush(); os.abort()"
    (tmp_path / "test_one.py").write_text(f"import subprocess, sys\nPROGRAM = {program!r}\ndef test_one():\n    {CASES[case]}\n")
    command = [sys.executable, "-m", "pytest", "-p", "process_output", "-p", "no:cacheprovider", "test_one.py"]
    shown = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parent)},
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 1
    assert "terminate called" in shown.stdout
    assert "(exit code -6)" in shown.stdout
