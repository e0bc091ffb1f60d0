"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from launching import Launched, launcher

# The suite gives the same answer twice: examples follow from the tests' text. STRETTO_EXPLORE=1 draws new ones.
# A busy machine fails nothing: hypothesis' own limits on time are off.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", UNTIMED, derandomize=True)
settings.register_profile("exploring", UNTIMED, derandomize=False)
settings.load_profile("exploring" if os.environ.get("STRETTO_EXPLORE") else "steady")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """`launch(text, "--workers", "2")` starts a run of a script with this text; it is killed with the test."""
    with launcher(tmp_path) as start:
        yield start
