"""What changes bits besides the script: the machine and its versions, which are fixed, and torch's settings, which a script may
choose until training begins.

Each has its Python name, so that a difference can be looked up and mended.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import Protocol, cast

import torch

from stretto.core.errors import ScriptError

_threads_at_import = torch.get_num_threads()
"""A script that has another number when it joins has chosen it."""


class _Deterministic(Protocol):
    """torch.utils.deterministic, whose property torch's types do not know."""

    fill_uninitialized_memory: bool


def machine() -> dict[str, str]:
    """What cannot change while a process lives."""
    return {
        "torch.__version__": str(torch.__version__),
        "platform.machine()": platform.machine(),
        "torch.backends.cpu.get_cpu_capability()": torch.backends.cpu.get_cpu_capability(),
        "os.environ['ONEDNN_MAX_CPU_ISA']": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "torch.cuda.get_device_name()": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _tf32(legacy: Callable[[], object], precision: Callable[[], object]) -> Callable[[], object]:
    """The old switch raises once a script has used the new one."""

    def read() -> object:
        try:
            return legacy()
        except RuntimeError:
            return precision()

    return read


_READ: dict[str, Callable[[], object]] = {
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
}
_READ_CUDA: dict[str, Callable[[], object]] = {
    "torch.backends.cuda.matmul.allow_tf32": _tf32(
        lambda: torch.backends.cuda.matmul.allow_tf32, lambda: torch.backends.cuda.matmul.fp32_precision
    ),
    "torch.backends.cudnn.allow_tf32": _tf32(lambda: torch.backends.cudnn.allow_tf32, lambda: torch.backends.cudnn.fp32_precision),
    "torch.backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.backends.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
}
"""Change no bits where there is no such device."""


def settings() -> dict[str, str]:
    """What a script may set, as it is now."""
    return {name: str(read()) for name, read in _readers().items()}


def _readers() -> dict[str, Callable[[], object]]:
    return {**_READ, **_READ_CUDA} if torch.cuda.is_available() else _READ


def fingerprint() -> dict[str, str]:
    """Workers with equal fingerprints compute equal bits."""
    return {**machine(), **settings()}


def prepare(threads: int | None = None, *, launched_with: int | None = None) -> list[str]:
    """The settings that bits independent of the number of workers need. The calls that changed something, as text.

    `threads` is what the script asks for, `launched_with` what its launcher has set. What a script has chosen
    before it joins stays.
    """
    changed: list[str] = []
    before = torch.get_num_threads()
    chosen = before != (launched_with if launched_with is not None else _threads_at_import)
    wanted = threads or (before if chosen else launched_with or 1)
    if before != wanted:
        torch.set_num_threads(wanted)
        if threads is None:
            changed.append(f"torch.set_num_threads({wanted}) (it was {before})")
    if not torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True, warn_only=True)
        cast("_Deterministic", torch.utils.deterministic).fill_uninitialized_memory = False
        changed.append("torch.use_deterministic_algorithms(True, warn_only=True)")
    if torch.backends.cudnn.benchmark:
        torch.backends.cudnn.benchmark = False
        changed.append("torch.backends.cudnn.benchmark = False")
    return changed


class TorchSettings:
    """A job's settings of torch: a script may change them until training begins, and not after."""

    def __init__(self) -> None:
        self._readers: list[tuple[str, Callable[[], object]]] = []
        self._fixed: list[object] = []

    def fix(self) -> dict[str, str]:
        """Training begins with what is set now."""
        self._readers = list(_readers().items())
        self._fixed = [read() for _, read in self._readers]
        return {name: str(value) for (name, _), value in zip(self._readers, self._fixed, strict=True)}

    def check(self) -> None:
        """At every boundary: costs a few microseconds."""
        if [read() for _, read in self._readers] == self._fixed:
            return
        for (name, read), value in zip(self._readers, self._fixed, strict=True):
            if read() != value:
                raise ScriptError(
                    f"{name} is {read()} and was {value} when training began, which changes the bits: set it before "
                    "the first step, on every worker, and leave it so"
                )


def report_changed(changed: list[str]) -> None:
    """Prints one line about the settings that were changed for the user."""
    if changed:
        print(
            f"stretto has called {', '.join(changed)} so that the bits do not depend on the number of workers; to choose "
            "otherwise, set it after stretto.join",
            file=sys.stderr,
            flush=True,
        )
