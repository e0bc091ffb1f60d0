"""Runs a script as a worker without the training library: only its crash is told."""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Sequence


def run_script(path: str, argv: Sequence[str]) -> int:
    """The exit code of the script, run as `python path argv...` would."""
    sys.argv = [path, *argv]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        link = socket.socket(fileno=os.dup(int(os.environ["STRETTO_LINK"])))
        message = {"kind": "crash", "tick": None, "type": type(error).__name__, "text": str(error),
                   "traceback": traceback.format_exc()}
        link.sendall(json.dumps(message).encode() + b"\n")
        return 1
    return 0
