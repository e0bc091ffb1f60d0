"""Runs one seed from its beginning to the end of its job, and says what it has shown."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stretto.membership import store_schema
from stretto.simulation.rosters.faults import mend, schedule
from stretto.simulation.rosters.invariants import BrokenPromise
from stretto.simulation.rosters.virtual_clock import LoopStalled, VirtualLoop
from stretto.simulation.rosters.world import World

TOGETHER_S = 120.0
"""Of virtual time: within this everybody has come together after the last fault."""
END_S = 600.0
"""And the job has ended after that; one slow worker may have to do all that is left."""
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class SeedReport:
    """What one seed has shown; `failure` is empty if all promises were kept."""

    seed: int
    mode: str
    events: int
    breaks: int
    rosters: int
    lives: int
    ticks: int
    seconds: float
    """Of virtual time."""
    failure: str
    log: tuple[str, ...]


def simulate(seed: int) -> SeedReport:
    """The same seed gives the same report, event by event."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    world: World | None = None
    failure = ""
    try:
        world = World(seed, loop)
        loop.set_exception_handler(lambda _, context: _crashed(world, context))
        schedule(world)
        loop.run_until_complete(_story(world))
    except BrokenPromise as broken:
        failure = str(broken)
    except (AssertionError, KeyError, AttributeError, TypeError, ValueError, IndexError) as error:
        failure = "".join(traceback.format_exception(error))
    except LoopStalled:
        failure = "the job has not ended, and never will"
    finally:
        _sweep(loop, world)
    assert world is not None
    checker = world.observer
    return SeedReport(
        seed,
        world.mode,
        checker.events,
        checker.breaks,
        len(checker.rosters),
        checker.life,
        checker.top,
        loop.time(),
        failure,
        tuple(checker.log),
    )


async def _story(world: World) -> None:
    checker = world.observer
    while world.loop.time() < world.duration_s and checker.outcome != "finished":
        await _pause(world)
    mend(world)
    if world.end is None:
        await _until(world, world.together, within_s=TOGETHER_S, what="everybody to come together")
        world.end = -(-(checker.top + 2) // world.passes) * world.passes
    await _until(world, lambda: checker.outcome == "finished", within_s=END_S, what="the end of the job")
    _check_end(world)


def _check_end(world: World) -> None:
    checker = world.observer
    done = [worker for worker in checker.workers.values() if worker.finished]
    if not done or any(worker.seat.tick != world.end or worker.state != checker.state_at(world.end or 0) for worker in done):
        checker.fail(f"the job ended with {[(worker.name, worker.seat.tick) for worker in done]}, its end was {world.end}")
    if world.mode == "orderly" and checker.breaks:
        checker.fail(f"{checker.breaks} breaks although nobody died who had the state")


async def _until(world: World, condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    end = world.loop.time() + within_s
    while not condition():
        if world.loop.time() > end:
            leader = store_schema.value(world.entries, store_schema.LEADER)
            world.observer.fail(
                f"waited {within_s:g} s in vain for {what}; leader {leader}, broken "
                f"{store_schema.broken(world.entries)}, roster {store_schema.roster(world.entries)}, "
                f"workers {store_schema.under(world.entries, store_schema.WORKERS)}"
            )
        await _pause(world)


async def _pause(world: World) -> None:
    await asyncio.sleep(LOOK_S)
    if world.observer.failure is not None:
        raise world.observer.failure
    for agent in world.living:
        failure = agent.failure()
        if failure is not None:
            raise failure


def _crashed(world: World | None, context: Mapping[str, object]) -> None:
    error = context.get("exception")
    if world is not None and world.observer.failure is None and isinstance(error, BaseException):
        world.observer.failure = error


def _sweep(loop: VirtualLoop, world: World | None) -> None:
    """Nothing may be left that runs into the next seed."""
    for agent in world.agents if world is not None else ():
        agent.stop()
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()
