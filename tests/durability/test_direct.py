"""Shards that go past the page cache: what is on the disk is what was given, whatever the file system says to it."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from saving_script import alone, arguments, wish

from stretto.train.checkpoint.catalog import choose, entries, verify
from stretto.train.checkpoint.storage import BLOCK, DIRECT_BYTES, LocalStorage, LocalStream

WIDE = {"width": 1300, "slices": 1}
"""A model of that width has a state of 20 MB: more than DIRECT_BYTES."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a life without checkpoints."""
    return alone(tmp_path_factory.mktemp("reference"), args=arguments(**WIDE, pause_s=0.0)).digest


def memory(size: int) -> memoryview:
    """Random bytes that begin at a page, as a snapshot does."""
    view = memoryview(mmap.mmap(-1, max(size, 1)))[:size]
    view[:] = random.Random(size).randbytes(size)
    return view


def write(path: Path, data: memoryview, *, direct: bool = True, chunk: int = 1 << 20) -> bool:
    """Whether it was still direct after the last whole piece."""
    stream = LocalStream(path, direct=direct)
    still = stream.direct
    for low in range(0, len(data), chunk):
        stream.write(data[low : low + chunk])
        still = stream.direct if low + chunk <= len(data) else still
    stream.close()
    return still


def cached(path: Path) -> int:
    """How many of the file's pages are in memory."""
    size = path.stat().st_size
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_ubyte.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start
        assert not failed, os.strerror(ctypes.get_errno())
        return sum(page & 1 for page in pages)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, (1 << 20) - 8, 1 << 20, (1 << 20) + 8, (3 << 20) + 5 * BLOCK])
def test_any_size_is_written_as_it_was_given(tmp_path: Path, size: int) -> None:
    data = memory(size)
    write(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data


def test_large_files_stay_out_of_the_page_cache_and_small_ones_in_it(tmp_path: Path) -> None:
    vault, large, small = LocalStorage(tmp_path), memory(DIRECT_BYTES + 100), memory(DIRECT_BYTES - BLOCK)
    for name, data in (("large", large), ("small", small)):
        stream = vault.stream("", name, size=len(data))
        if name == "large" and not stream.direct:
            pytest.skip("the file system of the temporary folder has no direct writes")
        stream.write(data)
        stream.close()
    assert cached(tmp_path / "large") <= 1, "more than the odd end of the file went through the page cache"
    assert cached(tmp_path / "small") == len(small) // mmap.PAGESIZE


def test_memory_that_does_not_begin_at_a_block_goes_through_the_cache(tmp_path: Path) -> None:
    data = memory(4 << 20)[24:]
    write(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data


@pytest.fixture
def mounted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of this kind, with these options."""
    kind, options = request.param
    where = tmp_path / "mounted"
    where.mkdir()
    made = subprocess.run(["mount", "-t", kind, "-o", options, kind, str(where)], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"{kind} cannot be mounted here: {made.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.parametrize("mounted", [("ramfs", "mode=0755")], indirect=True)
def test_a_file_system_without_direct_writes_is_written_to_all_the_same(mounted: Path) -> None:
    with pytest.raises(OSError):
        os.open(mounted / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    data = memory((2 << 20) + 77)
    assert not write(mounted / "file", data)
    assert (mounted / "file").read_bytes() == data


@pytest.mark.parametrize("mounted", [("tmpfs", "size=24m")], indirect=True)
def test_a_disk_that_is_full_in_the_middle_of_a_large_shard_is_said_and_training_goes_on(
    tmp_path: Path, mounted: Path, reference: str
) -> None:
    ended = alone(tmp_path, args=arguments(**WIDE), checkpoint=wish(mounted / "saved", every_steps=8, keep=2))
    assert ended.digest == reference
    assert "No space left on device" in ended.output and str(mounted / "saved") in ended.output
    whole = [entry for entry in entries(LocalStorage(mounted / "saved")) if entry.manifest is not None]
    assert len(whole) == 1, "the first save fits, and stays"
    assert whole[0].manifest is not None
    verify(LocalStorage(mounted / "saved"), whole[0].manifest)


def test_a_large_state_is_gone_on_from_to_the_same_digest(tmp_path: Path, reference: str) -> None:
    assert alone(tmp_path, args=arguments(**WIDE), checkpoint=wish(tmp_path / "saved", every_steps=16)).digest == reference
    first = choose(LocalStorage(tmp_path / "saved"), step=16)
    assert first is not None and first.manifest is not None
    assert first.manifest.shards[0].bytes > DIRECT_BYTES, "too small to be written past the page cache"
    again = alone(tmp_path, args=arguments(**WIDE, pause_s=0.0), resume={"url": str(tmp_path / "saved"), "step": 16})
    assert again.digest == reference
