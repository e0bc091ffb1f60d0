"""Fixtures: copies of what older versions wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "bits"))

import record_digests
from stored_files import VERSIONS, Stored, copied


@pytest.fixture(params=VERSIONS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    """The files of each version, for tests that change them."""
    return copied(request.param, tmp_path)


@pytest.fixture(scope="session")
def same_bits() -> None:
    """Skips where plain PyTorch computes other bits than on the machine that wrote the files."""
    recorded, here = json.loads(record_digests.RECORDED.read_text())["canary"], record_digests.canary()
    if other := [name for name in recorded if here.get(name) != recorded[name]]:
        pytest.skip(f"this machine computes other bits than the one that recorded, without stretto: {', '.join(other)}")
