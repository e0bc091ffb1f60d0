"""This agent as the other hosts see it: its card in the store and the port where they can ask it."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, replace
from typing import Any

from stretto.agent.control import Answer, Handler
from stretto.agent.hosts.joining import Joined, card, join, retire
from stretto.agent.hosts.reading import read_log
from stretto.agent.hosts.wire import Listener, Unreachable, ask
from stretto.agent.options import RunOptions
from stretto.agent.outcome import Outcome
from stretto.agent.records.folder import RunFolder, write_json
from stretto.core.errors import UsageError
from stretto.membership import keys
from stretto.membership.stores.store import StoreError

PROBES = 8
"""Agents that a newcomer proves to be reachable to, and from."""
PROBE_S = 3.0


@dataclass(slots=True)
class Abroad:
    joined: Joined
    card: dict[str, Any]
    alike: dict[str, Any]
    listener: Listener
    folder: RunFolder
    _handle: Handler | None = None

    def answer_with(self, handle: Handler) -> None:
        self._handle = handle

    async def handle(self, request: dict[str, Any]) -> Answer:
        """What another host asks: whether we are here, whether it can be reached from here, our logs, and the run's verbs."""
        match request["verb"]:
            case "ping":
                return {"agent": self.joined.agent}
            case "probe":
                host, port = request["back"]
                answer = await ask((str(host), int(port)), "ping", token=self.joined.token, timeout_s=PROBE_S / 2)
                return {"agent": self.joined.agent, "found": answer["agent"]}
            case "log":
                return read_log(self.folder, request)
            case _ if self._handle is not None:
                return await self._handle(request)
            case _:
                raise UsageError(f"agent {self.joined.agent} is still starting")

    async def close(self, outcome: Outcome) -> None:
        await self.listener.close()
        await retire(self.joined, state=outcome.state, digest=outcome.digest, card=self.alike)


async def enter(options: RunOptions, folder: RunFolder) -> tuple[Abroad, RunOptions]:
    """Joins the job, and proves that its other hosts can be reached, and reach this one. The options of this agent."""
    assert options.shared is not None
    joined = await join(options, options.shared)
    listener = Listener(lambda request: abroad.handle(request), token=joined.token)
    try:
        address = await listener.start(joined.host)
        shown = {"host": options.shared.label, "address": list(address), "pid": os.getpid(), "folder": str(folder.path.resolve()),
                 "name": socket.gethostname()}
        abroad = Abroad(joined, shown, card(options), listener, folder)
        await _prove(joined, address)
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
    return abroad, replace(options, agent=joined.agent, host=joined.host, checkpoints=checkpoints)


async def _prove(joined: Joined, address: tuple[str, int]) -> None:
    """An address that others cannot connect to would cost every roster that this host is in: it is refused before. Agents that do
    not answer may have died: only what is still there when their leases would have run out is believed."""
    found = await _problems(joined, address)
    if found:
        await asyncio.sleep(joined.timing.settle_s + joined.timing.renewal_s)
        found = await _problems(joined, address)
    if found:
        raise UsageError(found[0])


async def _problems(joined: Joined, address: tuple[str, int]) -> list[str]:
    """What is wrong between this host and each of the others, if nobody can be reached."""
    try:
        entries = {entry.key: entry for entry in (await joined.store.read(keys.AGENTS))[0]}
    except StoreError as error:
        raise UsageError(f"the store stopped answering: {error}") from None
    others = list(keys.under(entries, keys.AGENTS).items())[:PROBES]
    errors = await asyncio.gather(*(_probe(joined, name, document, address) for name, document in others))
    found = [error for error in errors if error]
    return found if len(found) == len(errors) else []


async def _probe(joined: Joined, name: str, document: dict[str, Any], address: tuple[str, int]) -> str:
    """What is wrong between this host and another one, or nothing."""
    if not document.get("address"):
        return ""
    there, port = document["address"]
    own = f"{address[0]}:{address[1]}"
    try:
        answer = await ask((there, int(port)), "probe", token=joined.token, timeout_s=PROBE_S, back=list(address))
    except Unreachable as error:
        return (f"host {document.get('host', name)} of this job cannot be reached from here: {error}. All hosts of a job must "
                "reach each other directly: check routes and firewalls, or choose the right network with --interface on both")
    except UsageError as error:
        return (f"this host tells the others to reach it at {address[0]}, but host {document.get('host', name)} cannot ({error}). "
                "Addresses behind NAT cannot be used: choose an address that the others see with --interface, or open the firewall")
    if answer.get("found") != joined.agent:
        return (f"at {own}, which this host tells the others to reach it at, host {document.get('host', name)} finds agent "
                f"{answer.get('found')}: choose this host's own address with --interface")
    return ""
