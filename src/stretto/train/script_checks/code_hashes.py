"""The code that a worker runs, as short hashes by file: a script that is edited while its job runs is another one on a newcomer.

Comments and the places of lines do not count. Looked at are the script and the modules in its folder and in the working directory;
libraries have their versions in the fingerprint, or are not compared.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from stretto.core.source import CODE_OF
from stretto.train.script_checks.variables import LIBRARIES, script_frames

MAIN = ("__main__", "__mp_main__")
MOST = 100
"""Modules that are looked at."""


def code_terms() -> dict[str, str]:
    """The hash of each file. Another Python compiles another code, so its version is in the name: what has no namesake on the
    other worker is not compared."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    found = {
        f"{CODE_OF}{os.path.basename(frame.f_code.co_filename)} ({python})": _hash(frame.f_code)
        for frame in script_frames()
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    }
    for name, path in sorted(_own_modules())[:MOST]:
        code = _code(name, path)
        if code is not None:
            found[f"{CODE_OF}the module {name} ({python})"] = _hash(code)
    return found


def _own_modules() -> Iterator[tuple[str, str]]:
    """Names and files. Most of thousands of modules are libraries: told from the beginning of their paths, before anything else."""
    folders = tuple(os.path.join(os.path.abspath(folder), "") for folder in (os.path.dirname("".join(sys.argv[:1])), "."))
    for name, module in list(sys.modules.items()):
        path = vars(module).get("__file__") if isinstance(module, ModuleType) else None  # a lazy module would import itself
        if isinstance(path, str) and path.endswith(".py") and name not in MAIN and not path.startswith(LIBRARIES):
            path = os.path.abspath(path)
            if path.startswith(folders) and not path.startswith(LIBRARIES):
                yield name, path


def _code(name: str, path: str) -> CodeType | None:
    """As the file is now: a change within the seconds since its import is not seen."""
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        loader: Any = spec.loader if spec is not None else None
        return loader.get_code(name)
    except (OSError, SyntaxError, ValueError, ImportError, AttributeError):
        return None


def _hash(code: CodeType) -> str:
    return hashlib.blake2b(_text(code).encode(), digest_size=6).hexdigest()


def _text(value: Any) -> str:
    """Everything that decides what code does, and no more: neither lines nor the file's place."""
    if isinstance(value, CodeType):
        return repr(
            (
                value.co_name,
                value.co_code,
                value.co_names,
                value.co_varnames,
                value.co_freevars,
                value.co_flags,
                value.co_argcount,
                value.co_kwonlyargcount,
                value.co_exceptiontable,
                [_text(one) for one in value.co_consts],
            )
        )
    if isinstance(value, tuple):
        return repr([_text(one) for one in value])
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
