"""What can be said of a script before anything is started: whether it can be read, and whether it is Python."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

from stretto.core.errors import UsageError

OTHERS = {
    ".yaml": "is a job file, not a script: give it to a server with `stretto submit {}`",
    ".yml": "is a job file, not a script: give it to a server with `stretto submit {}`",
    ".ipynb": "is a notebook, not a script: save it as one with `jupyter nbconvert --to script {}`",
    ".sh": "is a shell script: name the Python script that it starts",
}


def check_script(script: str) -> None:
    """Refuses what Python could not run, with the line: a worker would find it only after torch is loaded."""
    suffix = Path(script).suffix.lower()
    if suffix in OTHERS:
        raise UsageError(f"{script} {OTHERS[suffix].format(script)}")
    try:
        text = Path(script).read_bytes()
    except OSError as error:
        raise UsageError(f"{script} cannot be read: {error.strerror}") from None
    if suffix == ".pyc" or zipfile.is_zipfile(script):
        return
    if b"\0" in text:
        raise UsageError(f"{script} is not a Python script: it has NUL bytes in it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise UsageError(f"{script}:{error.lineno or 1}: {type(error).__name__}: {error.msg}{line}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{script} cannot be compiled: {error or type(error).__name__}") from None
