"""Deliberate mistakes in the protocol. Each changes one line of the real code; the simulator has to notice every one
of them.

A mutant names a function, a piece of its source and what to put there. The piece must occur exactly once, so a mutant
cannot outlive the code that it spoils.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import pytest

MEMBERSHIP = "stretto.membership."


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    where: str
    """`module:function` or `module:Class.method` in stretto.membership."""
    old: str
    new: str
    seed: int = 0
    """One that shows it, to be tried first; others are searched if the simulator has changed since."""

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        module_name, path = self.where.split(":")
        module = importlib.import_module(MEMBERSHIP + module_name)
        *owners, name = path.split(".")
        owner: Any = getattr(module, owners[0]) if owners else module
        found = inspect.getattr_static(owner, name)
        original = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        spoiled = self._spoil(original, module)
        if owners:
            patch.setattr(owner, name, property(spoiled) if isinstance(found, property) else spoiled)
            return
        for other in list(sys.modules.values()):
            if getattr(other, "__name__", "").startswith("stretto.") and getattr(other, name, None) is original:
                patch.setattr(other, name, spoiled)

    def _spoil(self, original: Any, module: ModuleType) -> FunctionType:
        source = textwrap.dedent(inspect.getsource(original))
        source = source[source.index("def ") if "async def " not in source else source.index("async def ") :]
        assert source.count(self.old) == 1, f"mutant {self.name!r}: {self.old!r} is not there exactly once:\n{source}"
        space: dict[str, Any] = {}
        code = compile("from __future__ import annotations\n" + source.replace(self.old, self.new), f"<{self.name}>", "exec")
        exec(code, module.__dict__, space)
        return space[original.__name__]


MUTANTS = (
    # The worker's side
    Mutant(
        "a stale roster is accepted",
        "member_state:MemberState.receive",
        "roster.number <= max(self.received, self.halted)",
        "False",
        seed=323,
    ),
    Mutant(
        "the others' control words are ignored",
        "member_state:MemberState.exchanged",
        "all(offer == offered for offer in offers)",
        "True",
        seed=14,
    ),
    Mutant("a tick is counted twice", "member_state:MemberState.exchanged", "self.tick += 1", "self.tick += 2 if offered else 1"),
    Mutant("a plan is offered before its group stands", "member_state:MemberState.offer", "fits = built and", "fits =", seed=1),
    Mutant("a halt is ignored", "member_state:MemberState.halt", "self.roster = None", "pass", seed=6),
    Mutant("a late halt stops a newer roster", "member_state:MemberState.halt", "newest.number > number", "False", seed=61),
    Mutant(
        "an agreement outlives the switch", "member_state:MemberState.enter", "self.agreed = self.offered = None", "pass", seed=1
    ),
    # The leader's decisions
    Mutant(
        "a roster goes on without the witness",
        "protocol:_witnessed",
        "any(worker in view.workers for worker in roster.workers) or _fenced(view, roster)",
        "True",
        seed=1804,
    ),
    Mutant(
        "a job is given up while it may go on elsewhere",
        "protocol:_fenced",
        "not any(member.worker not in view.workers and member.agent in view.unfenced for member in roster.members)",
        "True",
        seed=26,
    ),
    Mutant("a rescue does not wait for everybody to stop", "protocol:_rescue", "status.halted < roster.number", "False", seed=5),
    Mutant("a rescue goes back to the lowest tick", "protocol:_rescue", "top = max(", "top = min(", seed=141),
    Mutant(
        "newcomers without state are rescued",
        "protocol:_rescue",
        "if status.training and status.tick == top]",
        "if status.training and status.tick == top] + _ready(view)",
        seed=16,
    ),
    Mutant("a rescue keeps the broken number", "protocol:_rescue", "Roster(roster.number + 1,", "Roster(roster.number,", seed=1),
    Mutant(
        "a plan is published on a plan that is not in effect",
        "protocol:decide",
        "if not _in_effect(view, roster):",
        "if not _entered(view, roster):",
        seed=14,
    ),
    Mutant(
        "a superseding plan rests on the one that it replaces",
        "protocol:_supersede",
        "base=roster.base",
        "base=roster.number",
        seed=1,
    ),
    Mutant(
        "a plan without its dead newcomer is never made",
        "protocol:decide",
        "if not _entered(view, roster) and _failed_to_join(view, roster):",
        "if False:",
        seed=1,
    ),
    Mutant(
        "a newcomer's death breaks the roster",
        "protocol:_trouble",
        "elif member.worker in newcomers and status.tick is None:",
        "elif False:",
        seed=14,
    ),
    Mutant(
        "a leave in order is taken for a death", "protocol:_trouble_of_leavers", "and status.roster < roster.number", "", seed=32
    ),
    Mutant("a member's death is overlooked", "protocol:_trouble", "elif not status.alive:", "elif False:", seed=1),
    Mutant("a member that vanished is overlooked", "protocol:_trouble", "member.agent not in view.awaited", "False", seed=23),
    Mutant("a failed exchange is overlooked", "protocol:_halted_itself", "status.halted <= view.broken", "True", seed=6),
    Mutant(
        "a break spares the plan",
        "protocol:decide",
        "Break(roster.number, trouble)",
        "Break(roster.base or roster.number, trouble)",
        seed=3,
    ),
    Mutant("those left behind are never told", "protocol:_dismissals", "and status.tick is not None", "and False", seed=485),
    Mutant("other shapes are admitted", "protocol:_difference", "status.shape != reference.shape", "False", seed=33),
    Mutant("the end of the job is not seen", "protocol:over", "if not finished:", "if True:"),
    Mutant("a plan drops everybody who has the state", "rank_assignment:choose", "if not stay and members:", "if False:", seed=130),
    Mutant("too many stay", "rank_assignment:choose", "[:count]", "", seed=39),
    Mutant("newcomers are never taken", "rank_assignment:choose", "fresh[: max(0, count - len(stay))]", "[]"),
    Mutant(
        "a host's workers are scattered",
        "rank_assignment:arrange",
        "hosts.setdefault(status.agent, [])",
        "hosts.setdefault(status.worker, [])",
        seed=30,
    ),
    # Writing it down
    Mutant("a deposed leader's writes are accepted", "store_schema:_follows", "(office, Guard(ROSTER", "(Guard(ROSTER", seed=78),
    Mutant(
        "a write does not say what it follows",
        "store_schema:_follows",
        "Guard(ROSTER, revision(entries, ROSTER)), Guard(BROKEN, revision(entries, BROKEN))",
        "",
        seed=1,
    ),
    Mutant(
        "a new life uses old numbers",
        "store_schema:revive",
        "number = max(broken(entries), last.number if last else 0)",
        "number = 0",
        seed=3,
    ),
    Mutant("guards are not looked at", "stores.mvcc_table:MvccTable.commit", "not self.holds(guards)", "False"),
    Mutant("leases never run out", "stores.mvcc_table:MvccTable.expire", "held_lease.ends_at <= now", "False"),
    Mutant("an agent never fences itself", "timeouts:Fence.due", "now >= self.due_at", "False", seed=26),
    Mutant("an agent fences itself too late", "timeouts:Fence.due_at", "self.timing.fence_s", "self.timing.fence_s * 3", seed=26),
    Mutant(
        "the leader does not wait for the fence",
        "timeouts:Timeouts.fenced_s",
        "max(0.0, (self.fence_s + self.margin_s) * (1 + self.drift) - self.lease_s * (1 - self.drift))",
        "0.0",
        seed=26,
    ),
    Mutant(
        "an agent's late write undoes a newer one",
        "lease_session:LeaseSession._flush",
        "guards=[Guard(self._anchor, anchor_revision or 0)]",
        "guards=[]",
        seed=27,
    ),
    Mutant(
        "a lost lease is not noticed",
        "lease_session:LeaseSession._renew",
        "if self.lease and await self._store.renew(self.lease):",
        "if self.lease and (await self._store.renew(self.lease) or True):",
        seed=5,
    ),
)
