"""Checkpoints in any place that fsspec can write to. A file is one upload, which object stores make visible as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from stretto.core.errors import UsageError


class RemoteStorage:
    """Any fsspec file system. Its errors are told as OSError, whatever the library behind it raises."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            self._fs, self._root = fsspec.core.url_to_fs(url)
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

    def _list(self, path: str) -> list[dict[str, Any]]:
        with self._told(path):
            self._fs.invalidate_cache(path)
            try:
                return self._fs.ls(path, detail=True)
            except FileNotFoundError:
                return []

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise OSError(5, f"{type(error).__name__}: {error}", path) from error

    def folders(self) -> list[str]:
        return sorted(one["name"].rstrip("/").rsplit("/", 1)[-1] for one in self._list(self._path()) if one["type"] == "directory")

    def files(self, folder: str) -> dict[str, int]:
        listed = self._list(self._path(folder))
        return {one["name"].rsplit("/", 1)[-1]: int(one["size"]) for one in listed if one["type"] == "file"}

    def make(self, folder: str) -> None:
        with self._told(self._path(folder)):
            self._fs.makedirs(self._path(folder), exist_ok=True)

    def stream(self, folder: str, name: str, *, size: int) -> RemoteStream:
        path = self._path(folder, name)
        with self._told(path):
            return RemoteStream(self, self._fs, path)

    def put(self, folder: str, name: str, data: bytes, *, durable: bool = False) -> None:
        path = self._path(folder, name)
        with self._told(path):
            self._fs.pipe_file(path, data)

    def create(self, folder: str, name: str, data: bytes) -> bool:
        """Not atomic where the store has no such thing: two runs that begin in the same moment may both believe to be first."""
        path = self._path(folder, name)
        with self._told(path):
            if self._fs.exists(path):
                return False
            self._fs.pipe_file(path, data)
            return True

    def read(self, folder: str, name: str) -> bytes:
        with self._told(self._path(folder, name)):
            return self._fs.cat_file(self._path(folder, name))

    @contextlib.contextmanager
    def open(self, folder: str, name: str) -> Iterator[Any]:
        with self._told(self._path(folder, name)), self._fs.open(self._path(folder, name), "rb") as file:
            yield file

    def remove(self, folder: str, name: str) -> None:
        with self._told(self._path(folder, name)), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(folder, name))

    def remove_folder(self, folder: str) -> None:
        with self._told(self._path(folder)), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(folder), recursive=True)


class RemoteStream:
    def __init__(self, vault: RemoteStorage, fs: Any, path: str) -> None:
        self._vault = vault
        self._fs = fs
        self._path = path
        self._file = fs.open(path, "wb", block_size=16 << 20)

    def write(self, data: memoryview) -> None:
        with self._vault._told(self._path):
            self._file.write(bytes(data))

    def close(self) -> None:
        with self._vault._told(self._path):
            self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self._file.discard() if hasattr(self._file, "discard") else self._file.close()
        with contextlib.suppress(Exception):
            self._fs.rm_file(self._path)
