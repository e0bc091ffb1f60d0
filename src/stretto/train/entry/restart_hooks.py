"""For scripts in restart mode: when to save, and where. Imports no torch; where the script uses it, ranks agree through it.

    while training:
        …one step…
        if stretto.should_stop():        # every rank, at the same place
            break                        # hooks have run; or save here yourself

`stretto.on_save(save)` and `stretto.on_load(load)` are for your own state: `save(folder)` is called on every rank when the job
is about to stop, `load(folder)` at once where an earlier generation has saved. `load` gets a folder only if every rank has
completed `save`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import TypedDict

KEPT = 2
"""Folders that are kept: the newest complete one, and the one before it."""

Hook = Callable[[Path], None]


class _StopRequest:
    """Whether this process was sent SIGTERM, since it first called one of these functions."""

    def __init__(self) -> None:
        self.received = False
        self.saved = False
        self.hooks: list[Hook] = []
        self._listening = False

    def listen(self) -> None:
        if self._listening or threading.current_thread() is not threading.main_thread():
            return
        self._listening = True
        before = signal.getsignal(signal.SIGTERM)

        def on_sigterm(number: int, frame: FrameType | None) -> None:
            self.received = True
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, on_sigterm)


_request = _StopRequest()


def should_stop() -> bool:
    """Whether the job is about to be stopped or scaled: save, and end. All ranks get the same answer: call it on all of them.

    The hooks of `stretto.on_save` have run on all ranks when this returns True. Under plain `python` it reacts to SIGTERM as well.
    """
    _request.listen()
    stop = _any_rank(_request.received)
    if stop and not _request.saved:
        _request.saved = True
        _save(_request.hooks)
    return stop


def on_save(hook: Hook) -> Hook:
    """Calls `hook(folder)` on every rank before the job stops. For use as a decorator, or with a function."""
    _request.listen()
    _request.hooks.append(hook)
    return hook


def on_load(hook: Hook) -> Hook:
    """Calls `hook(folder)` now if an earlier generation has saved."""
    _request.listen()
    folders = _complete()
    if folders:
        hook(folders[-1])
    return hook


class _Launch(TypedDict):
    """The JSON of STRETTO_RESTART."""

    saves: str
    generation: int


def _launched() -> _Launch | None:
    text = os.environ.get("STRETTO_RESTART")
    return json.loads(text) if text else None


def _complete() -> list[Path]:
    launched = _launched()
    if launched is None or not Path(launched["saves"]).is_dir():
        return []
    return sorted(path for path in Path(launched["saves"]).iterdir() if path.is_dir() and path.name.isdigit())


def _save(hooks: list[Hook]) -> None:
    launched = _launched()
    if launched is None or not hooks:
        return
    saves = Path(launched["saves"])
    name = f"{launched['generation']:06d}"
    folder, first = saves / f"{name}.partial", int(os.environ.get("RANK", "0")) == 0
    if first:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    _barrier()
    for hook in hooks:
        hook(folder)
    _barrier()
    if first:
        _sync(folder)
        folder.rename(saves / name)
        for old in _complete()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    _barrier()


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _distributed() -> ModuleType | None:
    """torch.distributed, if the script has joined a group of several."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized() or module.get_world_size() < 2:
        return None
    return module


def _any_rank(flag: bool) -> bool:
    distributed = _distributed()
    if distributed is None:
        return flag
    torch = sys.modules["torch"]
    device = f"cuda:{torch.cuda.current_device()}" if distributed.get_backend() == "nccl" else "cpu"
    decision = torch.tensor([int(flag)], device=device)
    distributed.all_reduce(decision, op=distributed.ReduceOp.MAX)
    return bool(decision.item())


def _barrier() -> None:
    distributed = _distributed()
    if distributed is not None:
        distributed.barrier()
