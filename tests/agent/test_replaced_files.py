"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stretto.core.files import replacing


@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o600), (0o644, 0o644), (None, 0o640)])
def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path, mode: int | None, expected: int) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    umask = os.umask(0o027)
    try:
        with replacing(path, mode=mode, durable=True) as file:
            file.write(b"new")
            assert path.read_text() == "old"
    finally:
        os.umask(umask)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == expected
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("no bytes")  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
