"""Scripts under plain python end with the exit code that they should have, whatever their background threads are doing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment

RUNS = int(os.environ.get("STRETTO_EXITS", "18"))


@pytest.mark.long
@pytest.mark.timeout(300 + 20 * RUNS)
def test_short_scripts_end_in_order_beside_a_busy_machine() -> None:
    """At 0.1.0 one in some hundreds died with SIGABRT: most ended while a thread imported scipy for the throughput model, and the
    interpreter's end unwound that thread inside the initialisation of extension modules."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("exits.py")), str(RUNS)],
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert f"{RUNS} scripts, 0 ended otherwise" in done.stdout


def test_a_thread_that_still_works_is_over_before_the_interpreter_is(tmp_path: Path) -> None:
    program = """
import time
from stretto.core import threads
stop = []
def work():
    while not stop: time.sleep(0.01)
    print("the looping thread has ended")
def fit():
    time.sleep(0.5)
    import decimal
    print("the busy thread has ended")
threads.start(work, name="looping", stop=lambda: stop.append(1))
threads.start(fit, name="busy")
print("the script has ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), text=True, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "the script has ended"
    assert sorted(lines[1:]) == ["the busy thread has ended", "the looping thread has ended"]
