"""Worker logs for somebody on another host: pieces from a place on, so that nothing is kept for the reader."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stretto.agent.records.run_folder import RunFolder
from stretto.core.errors import UsageError

PIECE_BYTES = 256 << 10


def log_paths(folder: RunFolder, worker: str | None) -> list[Path]:
    """The logs of all workers in order, or one worker's; `agent` for the agent's own."""
    if worker is not None:
        short = worker.rpartition(".")[2].removeprefix("w")
        path = folder.logs / "agent.log" if worker == "agent" else folder.logs / f"worker-{short}.log"
        return [path] if path.is_file() else []
    found = [path for path in folder.logs.glob("worker-*.log") if re.fullmatch(r"worker-\d+", path.stem)]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("worker-")))


def read_log(folder: RunFolder, request: dict[str, Any]) -> dict[str, Any]:
    """`{worker, places}` in; for each log that has more after its place, its text and its new place."""
    places = request.get("places") or {}
    if not isinstance(places, dict):
        raise UsageError("places must name logs with their places")
    pieces: dict[str, Any] = {}
    for path in log_paths(folder, request.get("worker")):
        place = int(places.get(path.stem, 0))
        with open(path, "rb") as file:
            file.seek(place)
            data = file.read(PIECE_BYTES)
        if data:
            pieces[path.stem] = {"text": data.decode("utf-8", "replace"), "place": place + len(data)}
    return {"pieces": pieces, "ended": folder.read(folder.result) is not None}
