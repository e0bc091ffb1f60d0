"""First on the PYTHONPATH of the ranks of a script in restart mode: notes when its optimizers step, for the pauses in the journal.

Python imports this module before the script begins. PyTorch's own hook calls it once the script uses torch.optim; the script itself
is left as it is. A `sitecustomize` of the user's own runs as well, and processes that the script starts see nothing of this one.
What goes wrong here costs the pause in the journal, never the run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import mmap
import os
import struct
import sys
import time
from importlib.machinery import ModuleSpec
from typing import Any

WATCHED = "torch.optim.optimizer"


class Watch:
    """An import hook that waits for torch.optim."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._times = mmap.mmap(file.fileno(), 16)
        """Monotonic seconds of the first and of the last step, as two doubles."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != WATCHED:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                with contextlib.suppress(Exception):
                    module.register_optimizer_step_post_hook(self._stepped)

            loader.exec_module = exec_module
        return spec

    def _stepped(self, *_: Any) -> None:
        now = time.monotonic()
        if self._times[:8] == bytes(8):
            struct.pack_into("d", self._times, 0, now)
        struct.pack_into("d", self._times, 8, now)


def _step_aside() -> None:
    """Lets the next `sitecustomize` on the path run, and hides this one from the script's children."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    kept = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and os.path.abspath(path) != here]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)
    own = sys.modules.pop("sitecustomize")
    try:
        with contextlib.suppress(ModuleNotFoundError):
            import sitecustomize  # noqa: F401  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
    finally:
        sys.modules.setdefault("sitecustomize", own)  # the import that is under way looks for it


def _watch() -> None:
    launched = json.loads(os.environ["STRETTO_RESTART"])
    if os.environ.get("RANK") == "0":
        sys.meta_path.insert(0, Watch(launched["steps"]))  # type: ignore[arg-type]


with contextlib.suppress(Exception):
    _watch()
_step_aside()
