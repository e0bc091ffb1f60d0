"""What goes wrong, and when. All of it is mended when the faults are over."""

from __future__ import annotations

from collections.abc import Callable

from stretto.core.roster import Roster
from stretto.membership import store_schema
from stretto.simulation.rosters.network import STORE
from stretto.simulation.rosters.worker import SimWorker
from stretto.simulation.rosters.world import World

Pairs = list[tuple[str, str]]

FROZEN_S = 0.6
"""An agent kills a worker that has not moved for so long."""


def schedule(world: World) -> None:
    """Puts this seed's faults on the clock."""
    dice = world.random
    kinds = KINDS[world.mode]
    for _ in range(dice.randint(2, 14)):
        fault = dice.choice(kinds)
        world.loop.call_later(dice.uniform(0.5, world.duration_s), _strike, world, fault)


def _strike(world: World, fault: Callable[[World], None]) -> None:
    if not world.observer.outcome:
        world.observer.note(f"fault: {fault.__name__.strip('_')}")
        fault(world)


def mend(world: World) -> None:
    """The end of all faults, and what a user would do then."""
    world.mended = True
    world.network.down.clear()
    world.network.loss = world.network.spike = 0.0
    world.odd = 0.0
    for worker in world.processes:
        if worker.frozen:
            worker.thaw()
        if worker.odd:
            worker.die()
    while sum(agent.slots for agent in world.living if not agent.draining) < world.least:
        world.new_agent()


def _scale(world: World) -> None:
    world.write(store_schema.WANTED, {"workers": world.random.randint(world.least, world.most)})


def _kill(world: World) -> None:
    if world.processes:
        world.random.choice(world.processes).die()


def _kill_several(world: World) -> None:
    for worker in world.processes:
        if world.random.random() < 0.6:
            worker.die()


def _kill_newcomer(world: World) -> None:
    """One whose process group nobody can have agreed to use."""
    standing = {number for number, group in world.fabric.groups.items() if group.standing}
    newcomers = [
        worker
        for worker in world.processes
        if worker.seat.tick is None and (worker.seat.plan is None or worker.seat.plan.number not in standing)
    ]
    if newcomers:
        world.random.choice(newcomers).die()


def _freeze(world: World) -> None:
    if not world.processes:
        return
    worker = world.random.choice(world.processes)
    worker.frozen = True
    seconds = world.random.uniform(0.05, 1.2)
    if seconds < FROZEN_S:
        world.loop.call_later(seconds, worker.thaw)
    else:
        world.loop.call_later(FROZEN_S, worker.die)


def _glitch(world: World) -> None:
    """An exchange fails although everybody is well."""
    members = [worker for worker in world.processes if worker.seat.roster is not None]
    if members:
        worker = world.random.choice(members)
        assert worker.seat.roster is not None
        worker.unless_done(worker.halt, worker.seat.roster.number)


def _echo(world: World) -> None:
    """Messages that were on their way for very long: old rosters and old halts reach everybody."""
    rosters, broken = list(world.observer.rosters.values()), store_schema.broken(world.entries)
    for worker in world.processes:
        if rosters:
            worker.unless_done(worker.receive, world.random.choice(rosters))
        if broken:
            worker.unless_done(worker.halt, world.random.randint(1, broken))


def _straggle(world: World) -> None:
    """A worker's measured speed changes."""
    if world.processes:
        worker = world.random.choice(world.processes)
        worker.speed = world.random.choice((0.25, 1.0, 2.0))
        worker.agent.measured(worker, worker.speed)


def _drain(world: World) -> None:
    if len(world.living) > 1:
        agent = world.random.choice(world.living)
        agent.drain()
        world.loop.call_later(world.random.uniform(1.0, 6.0), agent.die)
        world.loop.call_later(world.random.uniform(0.5, 3.0), world.new_agent)


def _kill_agent(world: World) -> None:
    if world.living:
        world.random.choice(world.living).die()
        world.loop.call_later(world.random.uniform(0.1, 4.0), world.new_agent)


def _kill_host(world: World) -> None:
    if world.living:
        world.random.choice(world.living).die(with_host=True)
        world.loop.call_later(world.random.uniform(0.1, 4.0), world.new_agent)


def _depose(world: World) -> None:
    world.write(store_schema.LEADER, None)


def _cut(world: World, pairs: Pairs, seconds: float) -> None:
    if world.mended:
        return
    world.network.cut(pairs)
    world.loop.call_later(seconds, _mend_cut, world, pairs)


def _mend_cut(world: World, pairs: Pairs) -> None:
    if not world.mended:
        world.network.mend(pairs)


def _directions(world: World, host: str, other: str) -> Pairs:
    pairs = [(host, other), (other, host)]
    return world.random.choice((pairs, pairs, pairs[:1], pairs[1:]))


def _cut_from_store(world: World) -> None:
    agent = world.random.choice(world.agents)
    _cut(world, _directions(world, agent.name, STORE), world.random.uniform(0.2, 7.0))


def _flap(world: World) -> None:
    agent = world.random.choice(world.agents)
    pairs = _directions(world, agent.name, STORE)
    for turn in range(world.random.randint(2, 8)):
        world.loop.call_later(turn * 0.5, _cut, world, pairs, world.random.uniform(0.05, 0.6))


def _split(world: World) -> None:
    """Hosts fall in two halves; the store is with one of them, or with both, or with neither."""
    names = [agent.name for agent in world.agents]
    left = [name for name in names if world.random.random() < 0.5]
    right = [name for name in names if name not in left]
    pairs = [pair for host in left for other in right for pair in _directions(world, host, other)]
    side = world.random.choice((left, right, [], names))
    pairs += [pair for name in side for pair in ((name, STORE), (STORE, name))]
    _cut(world, pairs, world.random.uniform(0.3, 8.0))


def _outage(world: World) -> None:
    """The store is gone for a while. etcd then gives every lease its whole time again; a plain server does not."""
    pairs = [pair for agent in world.agents for pair in ((agent.name, STORE), (STORE, agent.name))]
    seconds = world.random.uniform(0.3, 6.0)
    _cut(world, pairs, seconds)
    if world.random.random() < 0.7:
        for step in range(int(seconds / 0.25) + 2):
            world.loop.call_later(step * 0.25, world.depot.prolong)


def _kill_unequal(world: World) -> None:
    """A member dies just when some have finished an exchange and others have not."""

    def trap(worker: SimWorker, roster: Roster) -> None:
        members = [other for other in world.processes if other.name in roster.workers]
        behind = [other for other in members if other.seat.tick != worker.seat.tick]
        if behind:
            world.random.choice((*behind, worker)).die()

    world.observer.on_commit.append(trap)


def _kill_joining(world: World) -> None:
    """A newcomer dies anywhere between its plan and its first step."""

    def trap(roster: Roster) -> bool:
        if roster.joined and roster.base:
            victim = world.observer.workers[world.random.choice(roster.joined)]
            world.loop.call_later(world.random.uniform(0.0, 0.5), victim.die)
        return bool(roster.joined and roster.base)

    world.observer.on_publish.append(trap)


def _isolate(world: World, hosts: set[str]) -> None:
    """These hosts see each other and nobody else, for longer than it takes to fence them."""
    others = [agent.name for agent in world.agents if agent.name not in hosts] + [STORE]
    pairs = [pair for host in sorted(hosts) for other in others for pair in ((host, other), (other, host))]
    seconds = world.timing.fence_s + world.random.uniform(0.5, 2.0)
    world.duration_s = max(world.duration_s, world.loop.time() + seconds)
    _cut(world, pairs, seconds)


def _isolate_members(world: World) -> None:
    """All who have the state are cut off together."""
    roster = store_schema.roster(world.entries)
    if roster is not None:
        _isolate(world, {member.agent for member in roster.members})


def _isolate_stayers(world: World) -> None:
    """Those whom a plan keeps are cut off when one whom it lets go has said yes and has not heard theirs."""

    def published(roster: Roster) -> bool:
        if roster.left:
            world.observer.workers[roster.left[0]].speed = 8.0  # the first to come to the next exchange
            world.observer.on_arrive.append(lambda name, offer, first: first and arrived(roster, name, offer))
        return bool(roster.left)

    def arrived(roster: Roster, name: str, offer: int) -> bool:
        hosts = {member.agent for member in roster.members}
        agreed = name in roster.left and offer == roster.number and world.observer.workers[name].host not in hosts
        if agreed:
            _isolate(world, hosts)
        return agreed or roster.number < max(world.observer.rosters)

    world.observer.on_publish.append(published)
    world.write(store_schema.WANTED, {"workers": world.least})


ORDERLY = (_scale, _scale, _kill_newcomer, _straggle, _depose, _echo)
HOST = (
    _scale,
    _scale,
    _kill,
    _kill_unequal,
    _kill_several,
    _kill_newcomer,
    _kill_joining,
    _freeze,
    _glitch,
    _straggle,
    _depose,
    _echo,
    _echo,
)
HOSTS = (
    *HOST,
    _drain,
    _kill_agent,
    _kill_host,
    _cut_from_store,
    _cut_from_store,
    _flap,
    _split,
    _split,
    _outage,
    _isolate_members,
    _isolate_stayers,
)
ISLANDS = (_scale, _scale, _scale, _isolate_stayers, _isolate_stayers, _isolate_members, _kill_unequal)
KINDS: dict[str, tuple[Callable[[World], None], ...]] = {"orderly": ORDERLY, "host": HOST, "hosts": HOSTS, "islands": ISLANDS}
