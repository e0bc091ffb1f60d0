"""Fixtures for all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from launching import Launched, launcher
from process_output import pytest_runtest_makereport  # noqa: F401

# The suite gives the same answer twice: examples follow from the tests' text. STRETTO_EXPLORE=1 draws new ones.
# A busy machine fails nothing: hypothesis' own limits on time are off.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", UNTIMED, derandomize=True)
settings.register_profile("exploring", UNTIMED, derandomize=False)
settings.load_profile("exploring" if os.environ.get("STRETTO_EXPLORE") else "steady")

TESTS = Path(__file__).parent
LONGEST = [
    TESTS / name
    for name in (
        "server/test_server_real.py",
        "batching/test_batching_runs.py",
        "examples/test_examples.py",
        "durability/test_kill_and_resume.py",
        "server/test_server_faults.py",
        "hosts/test_etcd_access.py",
        "durability/test_restart_mode.py",
        "ordinary/test_ordinary.py",
        "ordinary/test_programs.py",
    )
]
"""Files that take a minute and more, the longest first."""
assert all(path.exists() for path in LONGEST), f"a file that begins early has another name now: {LONGEST}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files begin early: one that begins last is what all processes but one wait for."""
    items.sort(key=lambda item: LONGEST.index(item.path) if item.path in LONGEST else len(LONGEST))


@pytest.fixture(autouse=True)
def no_job_left() -> Iterator[None]:
    """A test that leaves its job open breaks the tests after it in the same process: it fails itself."""
    yield
    joining = sys.modules.get("stretto.train.entry.join")
    job = joining.current() if joining is not None else None
    if job is not None:
        job.close()
        raise AssertionError("the test has left a job open in this process: close it, or run the script in one of its own")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """`launch(text, "--workers", "2")` starts a run of a script with this text; it is killed with the test."""
    with launcher(tmp_path) as start:
        yield start
