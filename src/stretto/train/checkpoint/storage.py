"""Where checkpoints lie: a folder of this machine, or any place that fsspec can write to.

Two levels only, folders and files. `put` is all or nothing: readers see the old content, the new one, or no file. Locally
that is a rename after fsync of the file and of its folder; elsewhere it is one upload, which object stores make visible as a whole.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Protocol

from stretto.train.checkpoint.local_storage import LocalStorage
from stretto.train.checkpoint.remote_storage import RemoteStorage


class Stream(Protocol):
    """A file being written. It is worth nothing before `close`, which makes it durable."""

    def write(self, data: memoryview) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class CheckpointStorage(Protocol):
    """All methods raise OSError, with the path, where the place cannot be used."""

    def where(self, folder: str = "", name: str = "") -> str: ...
    def folders(self) -> list[str]: ...
    def files(self, folder: str) -> dict[str, int]: ...
    def make(self, folder: str) -> None: ...
    def stream(self, folder: str, name: str, *, size: int) -> Stream: ...
    def put(self, folder: str, name: str, data: bytes, *, durable: bool = False) -> None: ...
    def create(self, folder: str, name: str, data: bytes) -> bool: ...
    def read(self, folder: str, name: str) -> bytes: ...
    def open(self, folder: str, name: str) -> contextlib.AbstractContextManager[Any]: ...
    def remove(self, folder: str, name: str) -> None: ...
    def remove_folder(self, folder: str) -> None: ...


def open_vault(url: str) -> CheckpointStorage:
    """The vault behind a path or a URL."""
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    if "://" not in url:
        return LocalStorage(Path(url).absolute())
    return RemoteStorage(url)
