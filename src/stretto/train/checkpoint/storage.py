"""Where checkpoints lie: a folder of this machine, or any place that fsspec can write to.

There are two levels only, folders and files. `put` is all or nothing: readers see the old content, the new one, or no file. Locally
that is a rename after fsync of the file and of its folder; elsewhere it is one upload, which object stores make visible as a whole.

Large local files are written past the page cache (O_DIRECT): copying gigabytes into it, and having the kernel write them out from
there, costs more CPU than the rest of a save, all of it taken from training. It also keeps the cache for the data that training
reads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, Protocol, TypedDict, cast

from stretto.core.errors import UsageError
from stretto.train.entry.failpoints import failpoint


class Stream(Protocol):
    """A file that is being written. `close` makes it durable; before that it counts for nothing."""

    def write(self, data: memoryview) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class StoredFile(Protocol):
    """A file that is being read."""

    def read(self, size: int, /) -> bytes: ...
    def readinto(self, buffer: memoryview, /) -> int | None: ...
    def seek(self, offset: int, /) -> int: ...


class CheckpointStorage(Protocol):
    """A place with folders of files. All methods raise OSError, with the path, where the place cannot be used."""

    def where(self, folder: str = "", name: str = "") -> str: ...
    def folders(self) -> list[str]: ...
    def files(self, folder: str) -> dict[str, int]: ...
    def make(self, folder: str) -> None: ...
    def stream(self, folder: str, name: str, *, size: int) -> Stream: ...
    def put(self, folder: str, name: str, data: bytes, *, durable: bool = False) -> None: ...
    def create(self, folder: str, name: str, data: bytes) -> bool: ...
    def read(self, folder: str, name: str) -> bytes: ...
    def open(self, folder: str, name: str) -> contextlib.AbstractContextManager[StoredFile]: ...
    def remove(self, folder: str, name: str) -> None: ...
    def remove_folder(self, folder: str) -> None: ...


def open_storage(url: str) -> CheckpointStorage:
    """The storage that a path or a URL names."""
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    if "://" not in url:
        return LocalStorage(Path(url).absolute())
    return RemoteStorage(url)


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
        """A durable file is on the disk when this returns, as is everything that was closed in its folder before."""
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
    def open(self, folder: str, name: str) -> Generator[StoredFile, None, None]:
        with open(self.root / folder / name, "rb", buffering=0) as file:
            yield file

    def remove(self, folder: str, name: str) -> None:
        (self.root / folder / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)


class LocalStream:
    """A local file, written past the page cache where it is large.

    `write` wants memory that begins at a page; all but the last piece are whole blocks.
    """

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
        """Writes as much as possible at once. The odd end of a file goes through the cache, as does what a file system refuses."""
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


class _Listed(TypedDict):
    name: str
    size: int
    type: str


class _FileSystem(Protocol):
    """What is used of fsspec, which comes without types."""

    def invalidate_cache(self, path: str) -> None: ...
    def ls(self, path: str, detail: bool) -> list[_Listed]: ...
    def makedirs(self, path: str, exist_ok: bool) -> None: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def cat_file(self, path: str) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def open(self, path: str, mode: str, block_size: int = ...) -> BinaryIO: ...
    def rm_file(self, path: str) -> None: ...
    def rm(self, path: str, recursive: bool) -> None: ...


@contextlib.contextmanager
def _errors_as_oserror(path: str) -> Generator[None, None, None]:
    """Whatever the library behind a file system raises, callers see OSError with the path."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(5, f"{type(error).__name__}: {error}", path) from error


class RemoteStorage:
    """Any fsspec file system. Its errors are raised as OSError, whatever the library behind it raises."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            self._fs, self._root = cast("tuple[_FileSystem, str]", fsspec.core.url_to_fs(url))
        except (ImportError, ValueError, OSError) as error:
            raise UsageError(
                f"--checkpoint {url} cannot be used: {error}: name a folder, or a URL that fsspec knows and whose "
                "package is installed (s3:// needs s3fs, gs:// needs gcsfs)"
            ) from error
        self._url = url.rstrip("/")

    def where(self, folder: str = "", name: str = "") -> str:
        return "/".join(part for part in (self._url, folder, name) if part)

    def _path(self, folder: str = "", name: str = "") -> str:
        return "/".join(part for part in (self._root.rstrip("/"), folder, name) if part)

    def _list(self, path: str) -> list[_Listed]:
        with _errors_as_oserror(path):
            self._fs.invalidate_cache(path)
            try:
                return self._fs.ls(path, detail=True)
            except FileNotFoundError:
                return []

    def folders(self) -> list[str]:
        return sorted(
            listed["name"].rstrip("/").rsplit("/", 1)[-1] for listed in self._list(self._path()) if listed["type"] == "directory"
        )

    def files(self, folder: str) -> dict[str, int]:
        listed = self._list(self._path(folder))
        return {file["name"].rsplit("/", 1)[-1]: int(file["size"]) for file in listed if file["type"] == "file"}

    def make(self, folder: str) -> None:
        with _errors_as_oserror(self._path(folder)):
            self._fs.makedirs(self._path(folder), exist_ok=True)

    def stream(self, folder: str, name: str, *, size: int) -> RemoteStream:
        path = self._path(folder, name)
        with _errors_as_oserror(path):
            return RemoteStream(self._fs, path)

    def put(self, folder: str, name: str, data: bytes, *, durable: bool = False) -> None:
        path = self._path(folder, name)
        with _errors_as_oserror(path):
            self._fs.pipe_file(path, data)

    def create(self, folder: str, name: str, data: bytes) -> bool:
        """Not atomic where the store has no such thing: two runs that begin in the same moment may both believe to be first."""
        path = self._path(folder, name)
        with _errors_as_oserror(path):
            if self._fs.exists(path):
                return False
            self._fs.pipe_file(path, data)
            return True

    def read(self, folder: str, name: str) -> bytes:
        with _errors_as_oserror(self._path(folder, name)):
            return self._fs.cat_file(self._path(folder, name))

    @contextlib.contextmanager
    def open(self, folder: str, name: str) -> Generator[StoredFile, None, None]:
        with _errors_as_oserror(self._path(folder, name)), self._fs.open(self._path(folder, name), "rb") as file:
            yield cast("StoredFile", file)

    def remove(self, folder: str, name: str) -> None:
        with _errors_as_oserror(self._path(folder, name)), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(folder, name))

    def remove_folder(self, folder: str) -> None:
        with _errors_as_oserror(self._path(folder)), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(folder), recursive=True)


class RemoteStream:
    """An upload to a file system of fsspec."""

    def __init__(self, fs: _FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._file = fs.open(path, "wb", block_size=16 << 20)

    def write(self, data: memoryview) -> None:
        with _errors_as_oserror(self._path):
            self._file.write(bytes(data))

    def close(self) -> None:
        with _errors_as_oserror(self._path):
            self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            discard = getattr(self._file, "discard", self._file.close)
            discard()
        with contextlib.suppress(Exception):
            self._fs.rm_file(self._path)
