"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Launched, launcher


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """`launch(text, "--workers", "2")` starts a run of a script with this text; it is killed with the test."""
    with launcher(tmp_path) as start:
        yield start
