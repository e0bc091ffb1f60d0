"""The leader's side of the roster protocol: one pure function from what is known to what to do next.

`decide` has no memory. It is asked again after every change of the view, says the same thing until it has been done,
and so does not mind messages that are lost, late, doubled or out of order, nor that somebody else has become leader.
docs/explanation/protocol.md has the argument why at most one roster can go on.

The last roster published is *the* roster. While it is not in effect everywhere, its `base` may still be: the workers
*concerned* are its members and those that it lets go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from stretto.core.roster import Roster
from stretto.membership.leader_view import Action, Break, Dismiss, Fail, LeaderView, Lost, Publish
from stretto.membership.rank_assignment import arrange, choose, cut_from, reaching, share, worthwhile
from stretto.membership.worker_status import Phase, WorkerStatus

__all__ = ["Action", "Break", "Dismiss", "Fail", "LeaderView", "Lost", "Phase", "Publish", "WorkerStatus", "decide", "over"]

ENDED_EARLY = "script ended on worker"


def decide(view: LeaderView) -> tuple[Action, ...]:
    """What to do now. An empty answer means: wait for the next change."""
    roster = view.roster
    if roster is None:
        return _begin(view, number=view.broken + 1, cause="start")
    if _ended_early(view, roster):
        return (Fail(_ended_early(view, roster)),)
    if over(view):
        return ()
    if view.broken >= roster.number:
        return _rescue(view, roster)
    trouble = _trouble(view, roster)
    if trouble:
        return (Break(roster.number, trouble),)
    if _finished(view):
        return ()  # a plan needs everybody's agreement, and the end is near
    if not _entered(view, roster) and _failed_to_join(view, roster):
        return _supersede(view, roster)
    if not _in_effect(view, roster):
        return ()
    return _dismissals(view, roster) + _change(view, roster)


def over(view: LeaderView) -> bool:
    """Whether the job has finished: somebody holds the final state, and nobody who has a state goes on."""
    if view.roster is None:
        return False
    finished = _finished(view)
    if not finished:
        return False
    top = max(status.tick or 0 for status in finished)
    number = view.roster.number
    holders = (status for status in _concerned(view, view.roster) if status.training and status.tick is not None)
    return all(status.halted >= number and (status.tick or 0) < top for status in holders)


# --- Who is concerned, and how things stand -------------------------------------------------------


def _concerned(view: LeaderView, roster: Roster) -> list[WorkerStatus]:
    """Those of the roster and of its base that have a record and are not gone."""
    statuses = (view.workers.get(worker) for worker in (*roster.workers, *roster.left))
    return [status for status in statuses if status is not None and status.alive]


def _finished(view: LeaderView) -> list[WorkerStatus]:
    return [status for status in view.workers.values() if status.phase is Phase.FINISHED]


def _entered(view: LeaderView, roster: Roster) -> bool:
    """Somebody has switched to it or has been let go by it, as far as is known."""
    statuses = map(view.workers.get, (*roster.workers, *roster.left))
    return any(status is not None and status.roster >= roster.number for status in statuses)


def _in_effect(view: LeaderView, roster: Roster) -> bool:
    """All living members have switched to it, so nobody is in its base any more."""
    statuses = map(view.workers.get, roster.workers)
    return all(status is not None and status.roster >= roster.number for status in statuses)


def _ended_early(view: LeaderView, roster: Roster) -> str:
    """The complaint about a script that ended on one worker while others went on, or nothing."""
    finished = _finished(view)
    if not finished:
        return ""
    first = min(finished, key=lambda status: (status.tick or 0, status.order))
    later = [status for status in (*_concerned(view, roster), *finished) if (status.tick or 0) > (first.tick or 0)]
    if not later:
        return ""
    names = ", ".join(sorted({status.worker for status in later})[:4])
    return (
        f"{ENDED_EARLY} {first.worker} at tick {first.tick} while others went on ({names} at tick "
        f"{max(status.tick or 0 for status in later)}): every worker has to run the same steps, so the end of the "
        f"script must not depend on the worker; epochs are counted by job.epochs, which tells newcomers the others'"
    )


# --- Breaking -------------------------------------------------------------------------------------


def _trouble(view: LeaderView, roster: Roster) -> str:
    """Why the roster cannot go on, or nothing."""
    newcomers = set(roster.joined) if not _entered(view, roster) else set[str]()
    for member in roster.members:
        status = view.workers.get(member.worker)
        if status is None:
            if member.agent not in view.awaited:
                return f"worker {member.worker} has vanished with agent {member.agent}"
        elif member.worker in newcomers and status.tick is None:
            continue  # whatever happened to it, a plan without it costs nothing
        elif not status.alive:
            return f"worker {member.worker} is gone"
        elif _halted_itself(view, roster, status):
            return f"an exchange failed on worker {member.worker}"
    if _in_effect(view, roster):
        return ""
    return _parted(view, roster) or _trouble_of_leavers(view, roster)


def _parted(view: LeaderView, roster: Roster) -> str:
    """A rescue with hosts that do not reach each other: it will not stand, and nobody trains until it is given up."""
    agents = {member.agent for member in roster.members}
    parted = sorted(" and ".join(sorted(cut)) for cut in view.cuts if cut <= agents)
    return f"agents {parted[0]} do not reach each other" if parted and roster.rescue and not _entered(view, roster) else ""


def _trouble_of_leavers(view: LeaderView, roster: Roster) -> str:
    for worker in roster.left:
        status = view.workers.get(worker)
        if status is None:
            if not view.awaited:
                return f"worker {worker} has vanished"
        elif status.phase is Phase.GONE and status.roster < roster.number:
            return f"worker {worker} is gone"
        elif status.alive and _halted_itself(view, roster, status):
            return f"an exchange failed on worker {worker}"
    return ""


def _halted_itself(view: LeaderView, roster: Roster, status: WorkerStatus) -> bool:
    if status.phase is Phase.FINISHED or status.halted <= view.broken:
        return False
    # A newcomer may have given up an earlier plan, and entered this one since; but one that has halted in a roster that
    # it was in had entered a plan that was replaced, unknown to whoever replaced it.
    newcomer = status.tick is None and status.worker in roster.joined
    return status.halted >= (roster.number if newcomer else max(status.roster, 1))


# --- After a break --------------------------------------------------------------------------------


def _rescue(view: LeaderView, roster: Roster) -> tuple[Action, ...]:
    """Go on with those who are furthest, once everybody concerned has stopped."""
    concerned = _concerned(view, roster)
    if any(status.training and status.halted < roster.number for status in concerned):
        return ()
    if not _witnessed(view, roster):
        return ()
    holders = [status for status in concerned if status.tick is not None]
    if not holders:
        return _without_state(view, roster, concerned)
    top = max(status.tick or 0 for status in holders)
    behind = [status for status in holders if status.training and status.tick != top]
    dismissals = tuple(Dismiss(status.worker, f"is at tick {status.tick}, the others at {top}") for status in behind)
    best = [status for status in holders if status.training and status.tick == top]
    if not best:
        return dismissals
    best = _without_suspects(view, roster, best, top=top)
    best.sort(key=lambda status: (status.worker in roster.left, status.order))
    slices = _slices(view, best[0])
    members = share(arrange(best[:slices], places=roster.workers), slices=slices)
    rescue = Roster(roster.number + 1, members, rescue=True, tick=top, term=view.term, cause="rescue")
    return (*dismissals, Publish(rescue))


def _witnessed(view: LeaderView, roster: Roster) -> bool:
    """Somebody of the roster is known to have stopped, so that it can finish no exchange any more; or all must have."""
    return any(worker in view.workers for worker in roster.workers) or _fenced(view, roster)


def _fenced(view: LeaderView, roster: Roster) -> bool:
    return not any(member.worker not in view.workers and member.agent in view.unfenced for member in roster.members)


def _without_state(view: LeaderView, roster: Roster, concerned: list[WorkerStatus]) -> tuple[Action, ...]:
    if concerned and not roster.rescue and not roster.base:
        # A first roster with a member that never entered it has not finished a single exchange.
        return _begin(view, number=roster.number + 1, cause="start")
    return (Lost(),) if _fenced(view, roster) else ()


def _without_suspects(view: LeaderView, roster: Roster, best: list[WorkerStatus], *, top: int) -> list[WorkerStatus]:
    """Where all of a rescue live, yet it failed at its first tick, some cannot reach each other: go on with fewer. Where nobody
    knows between whom the cut is, the newest goes."""
    again = roster.rescue and roster.tick == top and len(best) == len(roster.members)
    if not again or len(best) < 2:
        return best
    rest = reaching(best, cuts=view.cuts)
    return rest if len(rest) < len(best) else sorted(best, key=lambda status: status.order)[:-1]


# --- Plans ----------------------------------------------------------------------------------------


def _slices(view: LeaderView, reference: WorkerStatus) -> int:
    return view.slices or reference.slices


def _count(view: LeaderView, slices: int) -> int:
    return max(1, min(max(view.wanted, view.least), view.most, slices))


def _ready(view: LeaderView) -> list[WorkerStatus]:
    ready = [status for status in view.workers.values() if status.phase is Phase.READY and status.tick is None]
    return sorted(ready, key=lambda status: status.order)


def _difference(status: WorkerStatus, reference: WorkerStatus, *, slices: int) -> str:
    """Why this worker cannot train with the others, or nothing."""
    if status.slices != slices:
        return f"has slices={status.slices}, the job has slices={slices}: make the same job.loader(...) on every worker"
    if status.shape != reference.shape:
        return (
            f"has another model, optimizer, loader or seed than worker {reference.worker} (shape {status.shape or 'unknown'}, "
            f"not {reference.shape or 'unknown'}): run the same script with the same arguments on every worker"
        )
    return ""


def _most_alike(ready: Sequence[WorkerStatus]) -> WorkerStatus:
    """Where nobody trains yet, the majority says what the job is; the oldest decides a tie."""
    kinds = Counter((status.slices, status.shape) for status in ready)
    return max(ready, key=lambda status: (kinds[status.slices, status.shape], -status.order))


def _fitting(view: LeaderView, reference: WorkerStatus) -> list[WorkerStatus]:
    slices = _slices(view, reference)
    return [status for status in _ready(view) if not _difference(status, reference, slices=slices)]


def _begin(view: LeaderView, *, number: int, cause: str) -> tuple[Action, ...]:
    """The first roster of a life, as soon as the fewest workers are ready."""
    ready = _ready(view)
    if not ready:
        return _relics(view)
    reference = _most_alike(ready)
    slices = _slices(view, reference)
    if slices < view.least:
        return (
            Fail(
                f"slices={slices} allows at most {slices} workers, {view.least} were asked for: raise slices= in "
                f"job.loader(...) or lower --workers"
            ),
        )
    fitting = reaching(_fitting(view, reference), cuts=view.cuts)
    refusals = _relics(view) + _refusals(ready, reference, slices=slices)
    chosen = choose((), fitting, count=_count(view, slices))
    if len(chosen) < max(1, view.least):
        return refusals
    members = share(arrange(chosen, places=()), slices=slices)
    first = Roster(number, members, term=view.term, cause=cause, joined=tuple(member.worker for member in members))
    return (*refusals, Publish(first))


def _failed_to_join(view: LeaderView, roster: Roster) -> set[str]:
    """Newcomers that cannot enter this plan any more: dead, or of an earlier life, or else unable to reach the others."""
    joined = [status for status in map(view.workers.get, roster.joined) if status is not None]
    lost = {status.worker for status in joined if not status.alive or _relic(status, roster)}
    return lost or {status.worker for status in joined if _halted_itself(view, roster, status)}


def _relic(status: WorkerStatus, roster: Roster) -> bool:
    """It holds the state of an earlier life, which was not known when it was taken for a newcomer: it waits for a rescue."""
    return status.tick is not None and status.roster < roster.number and not roster.rescue


def _supersede(view: LeaderView, roster: Roster) -> tuple[Action, ...]:
    """The same change again without the newcomers that failed, under a higher number and on the same base."""
    failed = _failed_to_join(view, roster)
    unreachable = tuple(
        Dismiss(worker, f"could not build the process group of roster {roster.number} with the others")
        for worker in sorted(failed)
        if view.workers[worker].alive
    )
    rest = replace(view, workers={name: status for name, status in view.workers.items() if name not in failed})
    if not roster.base:
        return unreachable + _begin(rest, number=roster.number + 1, cause="start")
    present = (*(worker for worker in roster.workers if worker not in roster.joined), *roster.left)
    if any(worker not in view.workers for worker in present):
        return unreachable
    return unreachable + _plan(rest, roster, base=roster.base, present=present)


def _change(view: LeaderView, roster: Roster) -> tuple[Action, ...]:
    """The next plan, if anything is to change."""
    plan = _plan(view, roster, base=roster.number, present=roster.workers)
    then = plan[0].roster
    if then.joined or then.left:
        return plan
    speeds = {worker: view.workers[worker].speed for worker in roster.workers}
    return plan if worthwhile(roster.members, then.members, speeds=speeds) else ()


def _plan(view: LeaderView, roster: Roster, *, base: int, present: Sequence[str]) -> tuple[Publish]:
    members = [view.workers[worker] for worker in present]
    slices = _slices(view, members[0])
    agents = {status.agent for status in members}
    fitting = [status for status in _fitting(view, members[0]) if not cut_from(status.agent, agents, cuts=view.cuts)]
    chosen = choose(members, reaching(fitting, cuts=view.cuts), count=_count(view, slices))
    ranked = arrange(chosen, places=roster.workers)
    names = {status.worker for status in ranked}
    before = set(present)
    left = tuple(worker for worker in present if worker not in names)
    joined = tuple(status.worker for status in ranked if status.worker not in before)
    cause = "join" if joined else "leave" if left else "balance"
    shares = share(ranked, slices=slices)
    plan = Roster(roster.number + 1, shares, base=base, term=view.term, cause=cause, left=left, joined=joined)
    return (Publish(plan),)


# --- Dismissals -----------------------------------------------------------------------------------


def _relics(view: LeaderView) -> tuple[Dismiss, ...]:
    """Workers that still hold the state of an earlier life."""
    return tuple(
        Dismiss(status.worker, "has the state of an earlier life of the job")
        for status in view.workers.values()
        if status.training and status.tick is not None
    )


def _refusals(ready: Iterable[WorkerStatus], reference: WorkerStatus, *, slices: int) -> tuple[Dismiss, ...]:
    differences = ((status.worker, _difference(status, reference, slices=slices)) for status in ready)
    return tuple(Dismiss(worker, difference) for worker, difference in differences if difference)


def _dismissals(view: LeaderView, roster: Roster) -> tuple[Dismiss, ...]:
    """Newcomers that do not fit, and workers with a state that the job has gone on without."""
    reference = view.workers[roster.members[0].worker]
    members = set(roster.workers)
    strays = (
        status
        for status in view.workers.values()
        if status.training
        and status.tick is not None
        and status.worker not in members
        and (status.worker not in roster.left or status.halted >= max(roster.base, 1))
    )
    return (
        *_refusals(_ready(view), reference, slices=_slices(view, reference)),
        *(
            Dismiss(status.worker, f"was left at tick {status.tick}: roster {roster.number} goes on without it")
            for status in strays
        ),
    )
