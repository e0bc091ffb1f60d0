"""Checkpoints in a folder of this machine, or of a file system that it has mounted.

Large files are written past the page cache (O_DIRECT): copying gigabytes into it, and having the kernel write them out from there,
costs more CPU than all the rest of a save, and on a machine that trains all of it is taken from training. It also keeps the cache
for the data that training reads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stretto.train.entry.failpoints import failpoint

DIRECT_BYTES = 16 << 20
"""Smaller files go through the page cache: it costs next to nothing, and a resume on the same machine finds them in memory."""
BLOCK = 4096
"""Direct writes begin and end at multiples of it, in the file and in memory; no disk in use wants more."""
O_DIRECT: int = getattr(os, "O_DIRECT", 0)
"""Nothing where the system does not know it."""


class LocalStorage:
    """A folder of this machine, or of a file system that it has mounted."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def where(self, folder: str = "", name: str = "") -> str:
        return str(self.root / folder / name) if name else str(self.root / folder)

    def folders(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())

    def files(self, folder: str) -> dict[str, int]:
        try:
            return {entry.name: entry.stat().st_size for entry in os.scandir(self.root / folder) if entry.is_file()}
        except FileNotFoundError:
            return {}

    def make(self, folder: str) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)

    def stream(self, folder: str, name: str, *, size: int) -> LocalStream:
        return LocalStream(self.root / folder / name, direct=size >= DIRECT_BYTES)

    def put(self, folder: str, name: str, data: bytes, *, durable: bool = False) -> None:
        """A durable file is on the disk when this returns, and so is everything that was closed in its folder before."""
        path = self.root / folder / name
        temporary = path.with_name(f".{name}.{uuid.uuid4().hex[:8]}")
        try:
            _write(temporary, data, durable=durable)
            if durable:
                _sync(path.parent)
                _sync(self.root)
            failpoint(f"rename-{name}")
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            _sync(path.parent)

    def create(self, folder: str, name: str, data: bytes) -> bool:
        """False if there is such a file already."""
        path = self.root / folder / name
        temporary = path.with_name(f".{name}.{uuid.uuid4().hex[:8]}")
        try:
            _write(temporary, data, durable=False)
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        return True

    def read(self, folder: str, name: str) -> bytes:
        return (self.root / folder / name).read_bytes()

    @contextlib.contextmanager
    def open(self, folder: str, name: str) -> Iterator[Any]:
        with open(self.root / folder / name, "rb", buffering=0) as file:
            yield file

    def remove(self, folder: str, name: str) -> None:
        (self.root / folder / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)


class LocalStream:
    """`write` wants memory that begins at a page; all but the last piece are whole blocks."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        self._path = path
        self._fd = _open(path, direct=direct)

    @property
    def direct(self) -> bool:
        """Whether what is written next goes past the page cache."""
        return bool(fcntl.fcntl(self._fd, fcntl.F_GETFL) & O_DIRECT)

    def write(self, data: memoryview) -> None:
        while data:
            data = data[self._write(data) :]

    def _write(self, data: memoryview) -> int:
        """As much as goes at once. The odd end of a file goes through the cache, and so does all that a file system wants there."""
        if self.direct:
            whole = len(data) - len(data) % BLOCK
            if whole:
                try:
                    return os.write(self._fd, data[:whole])
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
            fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~O_DIRECT)
        return os.write(self._fd, data)

    def close(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        with contextlib.suppress(OSError):
            self._path.unlink()


def _open(path: Path, *, direct: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    if direct:
        with contextlib.suppress(OSError):  # file systems without direct writes; other errors come again
            return os.open(path, flags | O_DIRECT, 0o644)
    return os.open(path, flags, 0o644)


def _write(path: Path, data: bytes, *, durable: bool) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """A name is durable once its folder is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
