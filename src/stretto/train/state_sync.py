"""How a worker becomes a member: it gets the state and the place that the others have, and gives them to who comes later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from stretto.core.errors import ScriptError
from stretto.core.heartbeat import Activity
from stretto.core.roster import Roster
from stretto.train.catch_up import CatchUp
from stretto.train.checkpoint.resume import open_saver, resume
from stretto.train.consistency import SET_AGAIN, Consistency
from stretto.train.entry.contract import contract, sha
from stretto.train.entry.failpoints import failpoint
from stretto.train.entry.fingerprint import tell
from stretto.train.membership import Misplaced
from stretto.train.oom_retry import OomCarryover
from stretto.train.reduce.accumulation import program
from stretto.train.reduce.preamble import first_difference
from stretto.train.reduce.process_group import ProcessGroup
from stretto.train.reduce.reducer import Reducer
from stretto.train.script_checks.code_hashes import code_terms
from stretto.train.script_checks.next_calls import counted_draws
from stretto.train.script_checks.variables import difference, unregistered, variables
from stretto.train.sharing import transfer
from stretto.train.sharing.optimizer_hooks import OptimizerHooks, check_shared
from stretto.train.sharing.preallocate import Handover, spread, touched
from stretto.train.sharing.state_codec import spec
from stretto.train.sharing.transfer_topology import TransferTopology

if TYPE_CHECKING:
    from stretto.train.job import Job


class StateSync:
    """A job's way onto the roster."""

    def __init__(self, job: Job, *, carried: OomCarryover | None) -> None:
        self._job = job
        self._carried = carried
        self.done = False
        self.joined = 0
        """The tick at which this worker became a member."""
        self._made: dict[str, Any] = {}
        """Attributes of the shared modules as the script made them."""
        self._unregistered: dict[str, str] = {}
        """Their tensors that newcomers do not get, likewise."""
        self._attributes: Mapping[str, Any] = {}
        """As the job had them where this worker got its state, until they have been compared."""
        self._unlike = ""
        """What differs from them here."""
        self.newcomer = False
        """Others hold the state as well: this worker is not needed."""
        self.reload: Callable[[], dict[str, Any]] | None = None
        """Loads the state once more and gives its place, where it does not come from other workers."""
        self._groups: dict[str, list[list[int]]] = {}
        """The optimizers' parameter groups as the script made them."""
        self._room: list[torch.Tensor] = []
        """Memory that was made ready for the state before it comes."""
        self._sum_buffers: list[list[torch.Tensor]] = []
        """Likewise for the sums of the gradients."""
        self._outline = Handover()
        job._team.introduce = self._introduce

    def place(self, *, public: bool = False, catching_up: bool = False) -> dict[str, Any]:
        """Where the job is. `public` is what the digest has of it; `catching_up` leaves out what changes on the way there."""
        job = self._job
        place: dict[str, Any] = {"step": job.step, "epoch": job._epoch, "loaders": [one.position for one in job._loaders]}
        if not public:
            place["loaders"] = [one.state for one in job._loaders]
            buffers = job._reducer.buffers if job._reducer is not None else None
            gradients = job._reducer.gradients if job._reducer is not None else None
            groups = job._shared.groups()
            place["tick"] = job._team.seat.tick
            place["save"] = job._save_at
            place["moving"] = sorted(buffers.moving) if buffers is not None else []
            place["active"] = job._active
            place["eager"] = [gradients.eager, gradients.twice] if gradients is not None else [False, False]
            place["groups"] = groups if groups != self._groups else {}
            place["reduced"] = sorted(job._reduced)
            place["gradients"] = dict(job._hooks.pending())
            place["optimizer_steps"] = dict(job._hooks.steps)
            place["variables"] = self._variables()
            place["thawed"] = sorted(job._thawed)
            place["attributes"] = job._consistency.attributes(
                without={
                    id(parameter)
                    for number, parameter in enumerate(job._shared.all_parameters())
                    if number in job._thawed and not parameter.requires_grad
                }
            )
        if catching_up:
            del place["tick"], place["save"], place["variables"], place["attributes"]
        return place

    def admit(self) -> None:
        """Once: this worker becomes a member, and has the state that the others have."""
        job = self._job
        if self.done:
            return
        if not job.slices:
            raise ScriptError("training began before any job.loader was made")
        if any(loader.train for loader in job._loaders):
            check_shared(job._shared)
        job._torchmetrics.find(job._shared)
        job._reducer = Reducer(job.slices)
        job._resources.callback(job._reducer.close)
        job._planning.start()
        job._hooks = OptimizerHooks(job._shared)
        job._resources.callback(job._hooks.close)
        job._consistency = Consistency(job._shared, job._hooks)
        self._groups = job._shared.groups()
        self._made = job._consistency.attributes()
        self._unregistered = unregistered(job._shared.objects)
        job._prepare_gradients()
        settings = job._settings.fix()
        job._saver = open_saver(job)
        if self._carried is not None:
            self._carry_on(self._carried)
        elif job._link is None:
            job._team.alone(job.slices)
            job._team.seat.tick = self._resume()
            self.done = True
        else:
            described = [[one.train, one.batch, one.slices, one.tail, one.source.size] for one in job._loaders]
            job._beat.activity(Activity.WAITING)
            terms = contract(job)
            job._link.send(
                "ready",
                shape=f"{job._shared.shape(described)} {sha(terms)}",
                slices=job.slices,
                settings=settings,
                contract={**terms, **code_terms()},
            )
            before = time.monotonic()
            roster = job._team.admit(self._receive)
            self.done = True
            job._telling.switched(roster, switch_ms=(time.monotonic() - before) * 1e3)
            job._telling.admitted()
        assert job._team.group is not None
        self.joined = job._team.seat.tick or 0
        job._reducer.join(job._team.group)
        if job._reducer.gradients is not None:
            job._reducer.gradients.adopt(self._sum_buffers)
        self._sum_buffers = []
        for loader in job._loaders:
            job._telling.loader(loader)
        job._telling.stepped_at = time.monotonic()
        if job.chief and not job._team.roster.base:
            tell(job._changed)

    def at_boundary(self) -> None:
        """Describes the state for newcomers, if any have asked. Only the training thread may look at it."""
        if self._outline.asked:
            _, tensors = self._job._shared.flatten(self.place())
            self._outline.give([spec(tensor) for tensor in tensors])

    def _introduce(self, group: ProcessGroup, roster: Roster, wanted: Callable[[], bool]) -> None:
        """Newcomers hear how large the state is and make room for it while the others train: fresh memory is slow.

        Runs on the thread that has built the group. Whatever is different when the state comes is made then.
        """
        if not roster.base or not roster.joined:
            return
        routes = TransferTopology.of(roster)
        if group.rank == routes.holders[0]:
            outline = self._outline.ask(wanted)
            if outline is not None:
                transfer.announce(group, outline, newcomers=routes.newcomers)
        elif group.rank in routes.newcomers:
            specs = transfer.hear(group, holder=routes.holders[0])
            self._room = touched(specs, given=self._job._shared.tensors())
            gradients = self._job._reducer.gradients if self._job._reducer is not None else None
            if gradients is not None:
                self._sum_buffers = gradients.allocate(program(self._job.slices, roster.members[group.rank].share))

    def _make_room(self, skeleton: Any, specs: list[list[Any]]) -> list[torch.Tensor | None]:
        room, self._room = self._room, []
        return spread(self._job._shared.room(skeleton, specs), specs, room)

    def _carry_on(self, carried: OomCarryover) -> None:
        """This process was a member before its script ran out of memory, and still is."""
        job = self._job
        copies = [tensor.clone() for tensor in carried.tensors]
        self.reload = lambda: job._shared.load(carried.skeleton, copies)
        self.newcomer = job.workers > 1
        self.restore(job._shared.load(carried.skeleton, carried.tensors))
        job._notes = {}  # what was ordered for this boundary has been done there
        job._planning.carry_on(carried.plan)
        job._telling.carry_on(carried.job._telling)
        self._carried = None
        self.done = True
        if carried.broken:
            before = time.monotonic()
            roster = job._team.rescue()
            job._telling.switched(roster, switch_ms=(time.monotonic() - before) * 1e3)

    def _receive(self, group: ProcessGroup, roster: Roster) -> int:
        """The state from those who have it; the first roster's first member has it from its script."""
        job = self._job
        routes = TransferTopology.of(roster)
        if group.rank in routes.holders:
            if job._team.seat.tick is None:
                job._team.seat.tick = self._resume()
            self.send(group, roster)
            return job._team.seat.tick
        self.newcomer = bool(roster.base)
        return self.restore(self._take(group, routes))

    def _take(self, group: ProcessGroup, routes: TransferTopology) -> dict[str, Any]:
        """Receives the state; the place that came with it."""
        self._job._beat.activity(Activity.SWITCH)
        failpoint("receive")
        skeleton, tensors = transfer.receive(group, routes=routes, room=self._make_room)
        failpoint("received")
        return self._job._shared.load(skeleton, tensors)

    def _resume(self) -> int:
        """The first member's state: from the checkpoint to go on from, or from its script. Its tick."""
        place = resume(self._job, self._job._saver)
        return 0 if place is None else self.restore(place)

    def restore(self, place: dict[str, Any]) -> int:
        """Goes to a place in the job; its tick. From here to its first step the worker catches up."""
        job = self._job
        self._apply(place)
        job._notes = {"save": place["save"]} if place["save"] else {}
        active = place["active"] if "active" in place else self._trained(place)
        if active is not None:
            job._active = active
            job._catch_up = CatchUp(
                lambda: job._shared.flatten(self.place(catching_up=True)),
                loader=active,
                variables=place.get("variables", {}),
                attributes=place.get("attributes", {}),
            )
        return int(place["tick"])

    def _trained(self, place: dict[str, Any]) -> int | None:
        """The loader whose loop the job was in, which version 0.1 did not write: one that has begun, or the next of those that have
        not had this epoch."""
        pairs = zip(self._job._loaders, place["loaders"], strict=False)
        training = [(not held["step"], held["epoch"], loader.number) for loader, held in pairs if loader.train]
        return min(training)[2] if training and place["step"] else None

    def _apply(self, place: dict[str, Any]) -> None:
        job = self._job
        assert job._reducer is not None and job._reducer.buffers is not None and job._reducer.gradients is not None
        job.step, job._epoch = place["step"], place["epoch"]
        job._thawed = set(place.get("thawed", ()))
        reduced = set(place.get("reduced", job._reduced))
        if reduced != job._reduced:
            job._prepare_gradients(reduced)
        for loader, held in zip(job._loaders, place["loaders"], strict=False):
            loader.state = held
        job._reducer.buffers.moving = set(place["moving"])
        job._reducer.gradients.eager, job._reducer.gradients.twice = place.get("eager", [False, False])
        job._hooks.steps = dict(place.get("optimizer_steps", {}))
        given = place.get("gradients", {})
        for number, parameter in enumerate(job._shared.all_parameters()):
            parameter.grad = given.get(number)

    def check_draw(self) -> None:
        """A worker that catches up draws its first step: not by a counter that began anew."""
        wrong = counted_draws(step=self._job.step)
        if wrong:
            raise self.refusal(wrong)

    def arrived(self) -> None:
        """The script has reached the loop that the job is in: the state is put back as it was given."""
        job = self._job
        catch_up, job._catch_up = job._catch_up, None
        assert catch_up is not None
        wrong = difference(catch_up.variables, self._variables(arriving=True), position=job._loaders[catch_up.loader].step)
        if wrong:
            raise self.refusal(wrong)

        def load(skeleton: Any, tensors: list[torch.Tensor]) -> None:
            self._apply(job._shared.load(skeleton, tensors))

        self._attributes = catch_up.attributes
        intact = catch_up.finish(load)
        if not intact and self.reload is not None:
            self._apply(self.reload())
        job._passes.resend = not intact and self.reload is None
        self.reload = None

    def begin_pass(self) -> None:
        """Before this worker's first training pass: attributes of modules that the job had set, and that are still as the script
        has made them, were set by code that will not run again.

        A newcomer is compared with members that were there before, in the exchange, which names both. It is refused here only if
        all of them are gone.
        """
        if not self._attributes:
            return
        self._unlike = self._left_behind(self._attributes)
        group = self._job._team.group
        if not self.newcomer or group is None or group.size == 1:
            self.compared(with_older=False)

    def compared(self, *, with_older: bool) -> None:
        """An exchange has found this worker equal to the others. Where none of them is older, nobody knows what the job had set
        but the state that it sent."""
        if self._unlike and not with_older:
            raise ScriptError(f"{self._unlike}: it was set by code that has not run here. {SET_AGAIN}")
        self._attributes, self._unlike = {}, ""

    def _left_behind(self, given: Mapping[str, Any]) -> str:
        made, now = self._made, self._job._consistency.attributes()
        left = {
            path: {key: value for key, value in held.items() if now.get(path, {}).get(key) == made.get(path, {}).get(key)}
            for path, held in given.items()
        }
        own = {path: {key: now.get(path, {}).get(key) for key in held} for path, held in left.items()}
        return first_difference([left, own], ["the job", "this worker"])

    def _variables(self, *, arriving: bool = False) -> dict[str, Any]:
        found = variables(self._job._shared.objects, [loader.changes for loader in self._job._loaders], arriving=arriving)
        if not arriving:
            return found
        moved = {name for name, now in unregistered(self._job._shared.objects).items() if self._unregistered.get(name) != now}
        return {name: value for name, value in found.items() if name not in moved}  # an evaluation on the way has set them

    def refusal(self, text: str) -> BaseException:
        """Why this worker cannot take part. A newcomer goes and the job goes on; where everybody has just begun, the job fails."""
        return Misplaced(text) if self.newcomer else ScriptError(text)

    def send_again(self, behind: list[int]) -> None:
        """In the middle of a pass: members that have lost what they were given get it from the others."""
        job = self._job
        group = job._team.group
        assert group is not None
        holders = [rank for rank in range(group.size) if rank not in behind]
        if not holders:
            raise ScriptError(
                "code between `job.epochs` and `for step in data` has changed the shared state on every worker: move "
                "it after the loop over the steps"
            )
        routes = TransferTopology.between([member.address[0] for member in group.roster.members], newcomers=behind)
        if group.rank in behind:
            self._apply(self._take(group, routes))
        else:
            transfer.send(group, *job._shared.flatten(self.place()), routes=routes)
        job._beat.activity(Activity.OUTSIDE)

    def send(self, group: ProcessGroup, roster: Roster) -> None:
        job = self._job
        routes = TransferTopology.of(roster)
        if not routes.newcomers:
            return
        job._beat.activity(Activity.SWITCH)
        failpoint("send")
        skeleton, tensors = job._shared.flatten(self.place())
        transfer.send(group, skeleton, tensors, routes=routes)
        failpoint("sent")
