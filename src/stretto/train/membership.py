"""This worker's membership: its seat, the process groups of rosters, and the agent's messages about them.

The agent's messages arrive on a thread of their own and groups are built on others; the training thread looks at the result at the
edges of slices and steps. One lock guards the seat, so that a tick is counted before a halt or not at all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from stretto.core.errors import Broken
from stretto.core.journal import JournalEvent
from stretto.core.messages import (
    BarrierMessage,
    HaltedMessage,
    HaltMessage,
    PassedMessage,
    PreparedMessage,
    RankMessage,
    RosterMessage,
    StopMessage,
    ToWorker,
)
from stretto.core.roster import Member, Roster
from stretto.core.schema import Unknown
from stretto.core.slices import Span
from stretto.membership.member_state import MemberState
from stretto.train.entry.agent_channel import AgentChannel
from stretto.train.entry.failpoints import failpoint
from stretto.train.reduce.process_group import ProcessGroup, Rendezvous

NEWCOMERS_S = 5.0
"""A member that cannot build a plan's group waits this long for its newcomers to report the failure before it breaks its roster."""


class Left(SystemExit):
    """This worker is no longer in the job: the script ends here, in order."""


class Misplaced(Left):
    """This worker's script stands elsewhere than the job: it goes, the job goes on without it."""

    def __init__(self, text: str) -> None:
        super().__init__(0)
        self.text = text


class Membership:
    """A worker's membership. Without a channel it is a roster of one that never changes."""

    def __init__(self, worker: str, *, channel: AgentChannel | None, host: str = "127.0.0.1") -> None:
        self.worker = worker
        self.channel = channel
        self.seat = MemberState(worker)
        self.early = StartupRank(channel)
        self.group: ProcessGroup | None = None
        self.stopping = False
        """The agent asked this worker to end the job in order; it spreads with the next exchange."""
        self.catching_up = False
        """Whether this worker's script is on its way to the place where the job trains: it is not chief meanwhile."""
        self._changed = threading.Condition()
        self._groups: dict[int, ProcessGroup] = {}
        self._retired: list[ProcessGroup] = []
        self._rendezvous = Rendezvous(host) if channel is not None else None
        self.introduce: Callable[[ProcessGroup, Roster, Callable[[], bool]], None] | None = None
        """Called on a group that is connected, before this worker reports it: members announce the state to newcomers."""

    @property
    def address(self) -> tuple[str, int]:
        return self._rendezvous.address if self._rendezvous is not None else ("", 0)

    @property
    def rank(self) -> int:
        """This worker's rank; before training begins, the one that it was started with."""
        return self.early.rank if self.group is None else self.group.rank

    @property
    def size(self) -> int:
        """How many workers train; before training begins, how many the job wants."""
        return self.early.workers if self.group is None else self.group.size

    @property
    def chief(self) -> bool:
        """Whether this is the worker that prints, plots and saves."""
        return self.rank == 0 and not self.catching_up

    @property
    def first_of_agent(self) -> bool:
        """Whether this is the first worker of its agent in the roster. The chief always is."""
        if self.group is None:
            return True
        members = self.roster.members
        agent = members[self.rank].agent
        return next(place for place, member in enumerate(members) if member.agent == agent) == self.rank

    @property
    def roster(self) -> Roster:
        assert self.group is not None
        return self.group.roster

    def alone(self, slices: int) -> None:
        """A roster of one, for a script that was not launched."""
        roster = Roster(1, (Member(self.worker, "", ("", 0), Span(0, slices)),))
        self.group = ProcessGroup(roster, self.worker, Rendezvous.__new__(Rendezvous))
        self.seat.enter(roster, tick=0)

    # ---- messages of the agent (on the link's thread)

    def handle(self, message: ToWorker | Unknown) -> None:
        """Follows a message of the agent."""
        match message:
            case RosterMessage(roster=roster):
                self._handle_roster(roster)
            case HaltMessage(number=number):
                with self._changed:
                    self._halt(number)
            case RankMessage() | PassedMessage():
                self.early.handle(message)
            case StopMessage():
                self.stopping = True
                with self._changed:
                    self._changed.notify_all()
            case Unknown():
                pass

    def _handle_roster(self, roster: Roster) -> None:
        with self._changed:
            superseded = self.seat.plan
            build = self.seat.receive(roster)
            kept = superseded is self.seat.plan or superseded is self.seat.agreed or superseded is self.seat.offered
            if superseded is not None and not kept:
                self._drop(superseded.number)
            self._changed.notify_all()
            offered = self.seat.plan is roster and self.seat.built
        if build:
            threading.Thread(target=self._build, args=(roster,), name=f"stretto-roster-{roster.number}", daemon=True).start()
        elif offered and self.channel is not None:
            self.channel.send(PreparedMessage(number=roster.number))

    def _build(self, roster: Roster) -> None:
        assert self._rendezvous is not None and self.channel is not None

        def wanted() -> bool:
            return self.seat.plan is roster

        failpoint("build")
        group: ProcessGroup | None = None
        try:
            group = ProcessGroup(roster, self.worker, self._rendezvous, wanted=wanted)
            if self.introduce is not None:
                self.introduce(group, roster, wanted)
        except Broken as error:
            if group is not None:
                group.abort()
            self._unbuilt(roster, error)
            return
        with self._changed:
            if not self.seat.stood(roster.number):
                group.abort()
                return
            self._groups[roster.number] = group
            self._changed.notify_all()
        self.channel.send(PreparedMessage(number=roster.number))

    def _unbuilt(self, roster: Roster, error: Broken) -> None:
        """Gives the plan up. A newcomer does so at once: the leader then plans without it, and no member has stopped."""
        assert self.channel is not None
        with self._changed:
            if self.seat.tick is not None and roster.joined:
                self._changed.wait_for(lambda: self.seat.plan is not roster, timeout=NEWCOMERS_S)
            if self.seat.plan is roster:
                self.channel.send(JournalEvent(what="unbuilt", text=str(error)[:500]))
                self._halt(roster.number)

    def _halt(self, number: int) -> None:
        """Everything up to this number is over. The lock is held."""
        if self.seat.halt(number):
            if self.group is not None and self.group.roster.number <= number:
                self.group.abort()
            for built in [n for n in self._groups if n <= number]:
                self._drop(built)
            self._changed.notify_all()
        if self.channel is not None:
            self.channel.send(HaltedMessage(number=self.seat.halted, tick=self.seat.tick))

    def _drop(self, number: int) -> None:
        group = self._groups.pop(number, None)
        if group is not None:
            group.abort()

    # ---- calls of the training thread

    def check(self) -> None:
        """Raises `Broken` if the roster is."""
        if self.seat.roster is None:
            raise Broken("the roster was halted")

    def exchanged(self, offered: int, offers: Sequence[int]) -> None:
        """An exchange is finished, unless it was halted meanwhile."""
        with self._changed:
            self.check()
            self.seat.exchanged(offered, offers)
            retired, self._retired = self._retired, []
        for group in retired:
            group.abort()

    def failed(self) -> None:
        """An exchange has failed here: reports it. `rescue` waits for the leader's answer."""
        with self._changed:
            roster = self.seat.roster
            if roster is not None:
                self._halt(roster.number)

    def rescue(self) -> Roster:
        """Waits for the roster of the members that go on, and enters it."""
        with self._changed:
            while True:
                plan = self.seat.plan
                if plan is not None and plan.rescue and self.seat.built and plan.rank(self.worker) is not None:
                    break
                self._changed.wait(1.0)
            assert self.seat.tick is not None
            self._enter(plan, self.seat.tick)
            return plan

    def _enter(self, plan: Roster, tick: int) -> None:
        if self.group is not None:
            self._retired.append(self.group)
        self.group = self._groups.pop(plan.number)
        self.seat.enter(plan, tick=tick)

    def admit(self, receive: Callable[[ProcessGroup, Roster], int]) -> Roster:
        """Waits to be put on a roster; `receive` gets the state and returns its tick. Returns once this worker is a member."""
        while True:
            with self._changed:
                while True:
                    plan = self.seat.plan
                    wanted = plan is not None and plan.rescue == (self.seat.tick is not None)
                    if plan is not None and wanted and self.seat.built and plan.number in self._groups:
                        break
                    self._changed.wait(1.0)
                if plan.rescue:  # a first roster fell apart while its first member was giving away the state
                    assert self.seat.tick is not None
                    self._enter(plan, self.seat.tick)
                    return plan
                group = self._groups[plan.number]
            tick: int | None = None
            with contextlib.suppress(Broken):
                tick = receive(group, plan)
            with self._changed:
                current = self.seat.plan is plan
                if tick is not None and current and plan.number in self._groups:
                    self._enter(plan, tick)
                    return plan
                # A newcomer whose plan was replaced meanwhile waits for the next. The first member holds a state by now and can
                # enter rescues only: the leader has to know that its plan fell apart.
                if self.seat.tick is not None or (current and tick is None):
                    self._halt(plan.number)

    def _agreed(self) -> Roster:
        """The roster to move to. The lock is held, so a halt has come before or comes later."""
        if self.seat.agreed is None:
            raise Broken("the roster was halted at the boundary")
        return self.seat.agreed

    def switch(self, send: Callable[[ProcessGroup, Roster], None]) -> Roster | None:
        """At a boundary: moves to the agreed roster, if there is one. `send` sends newcomers the state."""
        if self.seat.agreed is None:
            return None
        with self._changed:
            plan = self._agreed()
            if plan.rank(self.worker) is None:
                raise Left(0)
            group = self._groups.get(plan.number)
        if group is None:
            raise Broken("the agreed roster is gone")
        send(group, plan)
        with self._changed:
            self.check()
            assert self.seat.tick is not None
            self._enter(plan, self.seat.tick)
        return plan


class StartupRank:
    """Chief, rank and number of workers at the top of the script, and barriers there. Alone it is the chief of one."""

    def __init__(self, channel: AgentChannel | None) -> None:
        self._channel = channel
        self._changed = threading.Condition()
        self._rank = RankMessage(chief=True, rank=0, workers=1) if channel is None else None
        self._barriers = 0
        self._passed = 0

    def handle(self, message: RankMessage | PassedMessage) -> None:
        """On the link's thread."""
        with self._changed:
            if isinstance(message, RankMessage):
                self._rank = message
            else:
                self._passed = max(self._passed, message.count)
            self._changed.notify_all()

    def _wait_for_rank(self) -> RankMessage:
        """Waits for the agents to agree, which takes them a moment where they are on several hosts."""
        with self._changed:
            self._changed.wait_for(lambda: self._rank is not None)
            assert self._rank is not None
            return self._rank

    @property
    def chief(self) -> bool:
        return self._wait_for_rank().chief

    @property
    def rank(self) -> int:
        return self._wait_for_rank().rank

    @property
    def workers(self) -> int:
        return self._wait_for_rank().workers

    def barrier(self) -> None:
        """Waits until the chief has reached the same barrier. A newcomer to a running job does not wait."""
        if self._channel is None:
            return
        self._barriers += 1
        self._channel.send(BarrierMessage(count=self._barriers))
        with self._changed:
            self._changed.wait_for(lambda: self._passed >= self._barriers)
