"""Whether this host and the others reach each other: proved before it starts a worker, and asked again whenever connections fail.

What is found out then goes into the agent's card in the store. So the leader leaves a host out that does not reach those who train,
instead of trying it again and again, and takes it back when it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stretto.agent.hosts.join import Joined
from stretto.agent.hosts.signed_rpc import PeerUnreachable, ask
from stretto.core.errors import UsageError
from stretto.core.json_types import JsonObject, to_address
from stretto.membership import store_schema
from stretto.membership.stores.store import StoreError

PROBES = 8
"""Agents that a newcomer proves to be reachable to, and from; also how many are asked at once."""
PROBE_LEASES = 1.5
"""An agent that has not answered within so many leases is not reached: 3 s, or more where the network is known to be slow."""
AGAIN_S = 2.0

Cards = Mapping[str, JsonObject]


async def answer_probe(request: JsonObject, joined: Joined) -> JsonObject:
    """The side of the host that is probed: it connects to the address that the other host says it has."""
    answer = await ask(to_address(request["back"]), "ping", token=joined.token, tls=joined.tls, timeout_s=_patience_s(joined) / 2)
    return {"agent": joined.agent, "found": answer["agent"]}


async def prove(joined: Joined, address: tuple[str, int]) -> None:
    """An address that others cannot connect to would cost every roster that this host is in: it is refused before. Agents that do
    not answer may have died: only what is still there when their leases would have run out is believed."""
    if await _stranded(joined, address):
        await asyncio.sleep(joined.timing.settle_s + joined.timing.renewal_s)
        problem = await _stranded(joined, address)
        if problem:
            raise UsageError(problem)


async def _stranded(joined: Joined, address: tuple[str, int]) -> str:
    """What is wrong between this host and another one, if nobody can be reached."""
    try:
        entries = {entry.key: entry for entry in (await joined.store.read(store_schema.AGENTS))[0]}
    except StoreError as error:
        raise UsageError(f"the store stopped answering: {error}") from None
    others = dict(list(store_schema.under(entries, store_schema.AGENTS).items())[:PROBES])
    problems = await unreached(others, joined, address)
    return next(iter(problems.values())) if problems and len(problems) == len(others) else ""


async def unreached(others: Cards, joined: Joined, address: tuple[str, int]) -> dict[str, str]:
    """What is wrong between this host and each of these, where something is."""
    limit = asyncio.Semaphore(PROBES)

    async def probe(name: str) -> str:
        async with limit:
            return await _probe(joined, name, others[name], address)

    problems = await asyncio.gather(*map(probe, others))
    return {name: problem for name, problem in zip(others, problems, strict=True) if problem}


async def _probe(joined: Joined, name: str, card: JsonObject, address: tuple[str, int]) -> str:
    """What is wrong between this host and another one, or nothing."""
    if not card.get("address"):
        return ""
    host = card.get("host", name)
    try:
        answer = await ask(
            to_address(card["address"]),
            "probe",
            token=joined.token,
            tls=joined.tls,
            timeout_s=_patience_s(joined),
            back=list(address),
        )
    except PeerUnreachable as error:
        return (
            f"host {host} of this job cannot be reached from here: {error}. All hosts of a job must "
            "reach each other directly: check routes and firewalls, or choose the right network with --interface on both"
        )
    except UsageError as error:
        return (
            f"this host tells the others to reach it at {address[0]}, but host {host} cannot ({error}). "
            "Addresses behind NAT cannot be used: choose an address that the others see with --interface, or open the firewall"
        )
    if answer.get("found") != joined.agent:
        return (
            f"at {address[0]}:{address[1]}, which this host tells the others to reach it at, host {host} finds agent "
            f"{answer.get('found')}: choose this host's own address with --interface"
        )
    return ""


def _patience_s(joined: Joined) -> float:
    return PROBE_LEASES * joined.timing.lease_s


class Connectivity:
    """Probes the other hosts after a failure, until all of them are reached."""

    def __init__(
        self, joined: Joined, address: tuple[str, int], *, others: Callable[[], Cards], report: Callable[[dict[str, str]], None]
    ) -> None:
        """`others` returns the cards of the agents that the store lists; `report` gets the problems whenever they change."""
        self._joined = joined
        self._address = address
        self._others = others
        self._report = report
        self._problems: dict[str, str] = {}
        self._checking = False

    async def check(self) -> None:
        """Called whenever an exchange has failed or a process group could not be built. One check runs at a time."""
        if self._checking:
            return
        self._checking = True
        try:
            while await self._probe():
                await asyncio.sleep(AGAIN_S)
        finally:
            self._checking = False

    async def _probe(self) -> bool:
        """Whether any host is not reached. A dead agent does not count: its lease runs out meanwhile."""
        patient = asyncio.create_task(asyncio.sleep(2 * self._joined.timing.lease_s))
        problems = await unreached(self._others(), self._joined, self._address)
        if problems.keys() - self._problems.keys():
            await patient
        patient.cancel()
        present = self._others()
        problems = {name: problem for name, problem in problems.items() if name in present}
        if problems.keys() != self._problems.keys():
            self._problems = problems
            self._report(problems)
        return bool(problems)
