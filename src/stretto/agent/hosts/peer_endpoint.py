"""What an agent offers the other hosts: its card in the store, a port for their requests, its logs."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stretto.agent.completion import RunOutcome
from stretto.agent.control_server import Handler
from stretto.agent.hosts.connectivity import answer_probe, prove
from stretto.agent.hosts.join import Joined, card, join, retire
from stretto.agent.hosts.signed_rpc import Listener
from stretto.agent.options import RunOptions
from stretto.agent.records.run_folder import RunFolder, write_json
from stretto.core.errors import UsageError
from stretto.core.json_types import JsonObject, to_int

PIECE_BYTES = 256 << 10


@dataclass(slots=True)
class PeerEndpoint:
    """This agent's card in the store, and the port that the other hosts' requests come to."""

    joined: Joined
    card: JsonObject
    alike: JsonObject
    listener: Listener
    folder: RunFolder
    _handle: Handler | None = None

    def answer_with(self, handle: Handler) -> None:
        self._handle = handle

    async def handle(self, request: JsonObject) -> Mapping[str, object]:
        """Answers another host: `ping`, `probe` (whether it can be reached from here), `log`, and the verbs of the run."""
        match request["verb"]:
            case "ping":
                return {"agent": self.joined.agent}
            case "probe":
                return await answer_probe(request, self.joined)
            case "log":
                return _read_log(self.folder, request)
            case _ if self._handle is not None:
                return await self._handle(request)
            case _:
                raise UsageError(f"agent {self.joined.agent} is still starting")

    async def close(self, outcome: RunOutcome) -> None:
        await self.listener.close()
        await retire(self.joined, state=outcome.state, digest=outcome.digest, card=self.alike)


async def enter(options: RunOptions, folder: RunFolder) -> tuple[PeerEndpoint, RunOptions]:
    """Joins the job, and proves that its other hosts can be reached, and reach this one. The options of this agent."""
    assert options.shared is not None
    joined = await join(options, options.shared)

    async def handle(request: JsonObject) -> Mapping[str, object]:
        return await endpoint.handle(request)

    listener = Listener(handle, token=joined.token)
    try:
        address = await listener.start(joined.host, tls=options.shared.server_tls() if options.shared.sealed else None)
        shown: JsonObject = {
            "host": options.shared.label,
            "address": list(address),
            "pid": os.getpid(),
            "folder": str(folder.path.resolve()),
            "name": socket.gethostname(),
        }
        endpoint = PeerEndpoint(joined, shown, card(options), listener, folder)
        await prove(joined, address)
        checkpoints = options.checkpoints
        if checkpoints is not None:
            checkpoints = replace(checkpoints, run_id=joined.run_id)
            checkpoints.claim(joined.job)
    except BaseException:
        await listener.close()
        await joined.opened.close()
        raise
    document = folder.read(folder.request) or {}
    identity = {"agent": joined.agent, "host": joined.host, "job": {"name": joined.job, "id": joined.id}}
    write_json(folder.request, {**document, **identity})
    return endpoint, replace(options, agent=joined.agent, host=joined.host, checkpoints=checkpoints)


def _log_paths(folder: RunFolder, worker: str | None) -> list[Path]:
    """The logs of all workers in order, or one worker's; `agent` for the agent's own."""
    if worker is not None:
        short = worker.rpartition(".")[2].removeprefix("w")
        path = folder.logs / "agent.log" if worker == "agent" else folder.logs / f"worker-{short}.log"
        return [path] if path.is_file() else []
    paths = [path for path in folder.logs.glob("worker-*.log") if re.fullmatch(r"worker-\d+", path.stem)]
    return sorted(paths, key=lambda path: int(path.stem.removeprefix("worker-")))


def _read_log(folder: RunFolder, request: JsonObject) -> JsonObject:
    """A piece of each log after the place that the reader has reached, and the new place: nothing is kept for the reader."""
    places = request.get("places") or {}
    if not isinstance(places, dict):
        raise UsageError("places must name logs with their places")
    worker = request.get("worker")
    pieces: JsonObject = {}
    for path in _log_paths(folder, None if worker is None else str(worker)):
        place = to_int(places.get(path.stem))
        with open(path, "rb") as file:
            file.seek(place)
            data = file.read(PIECE_BYTES)
        if data:
            pieces[path.stem] = {"text": data.decode("utf-8", "replace"), "place": place + len(data)}
    return {"pieces": pieces, "ended": folder.read(folder.result) is not None}
