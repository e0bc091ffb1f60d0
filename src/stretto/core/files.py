"""Files that are replaced as a whole.

This is the only I/O in core: agent, clusters, server and train all write such files, and core is all that they have in common.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path, *, mode: int | None = None, durable: bool = False) -> Generator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends, and is deleted if the block raises.

    Readers see the old file or the new one, never half of one. `mode` is set regardless of the umask; None leaves it to the umask.
    With `durable`, the content is on the disk before the file is renamed.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
