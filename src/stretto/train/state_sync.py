"""How a worker gets the state and position of the others, and gives them to those that come later.

A newcomer, and every worker after a resume, runs the script from its top. The code that it passes on the way to the place where the
job trains has run before, on the others or before the resume: it must not change what this worker was given. So the state is kept
aside (small tensors as copies, large ones by their version and a sample of their elements) and put back at the first step. Loops
that are over are skipped, evaluations are not repeated, and `job.chief` is False meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from stretto.core.errors import ScriptError
from stretto.core.heartbeat import Activity, Heartbeat
from stretto.core.json_types import JsonValue
from stretto.core.roster import Roster
from stretto.train.checkpoint.reader import ResumePoint
from stretto.train.consistency import SET_AGAIN, Consistency, checksum
from stretto.train.entry.agent_channel import NullHeartbeat
from stretto.train.entry.failpoints import failpoint
from stretto.train.membership import Membership, Misplaced
from stretto.train.position import Directives, Position
from stretto.train.reduce.preamble import first_difference
from stretto.train.reduce.process_group import ProcessGroup
from stretto.train.reduce.reducer import ReducedParameters, Reducer
from stretto.train.script_checks.variables import counted_draws, difference, unregistered, variables
from stretto.train.sharing import transfer
from stretto.train.sharing.optimizer_hooks import OptimizerHooks
from stretto.train.sharing.preallocate import StateAnnouncement
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.transfer import TransferTopology

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader


Place: TypeAlias = dict[str, Any]
"""Where the job is, as newcomers and checkpoints get it. Its keys are in `StateSync.place`; earlier versions wrote fewer."""
SMALL_BYTES = 1 << 16
"""Tensors up to this size are copied."""
SAMPLES = 1 << 10
"""Elements of a large tensor that are looked at, beside its version: `.data` does not count versions."""


class StateSync:
    """The state of one worker: received, sent, and compared with what the job had."""

    def __init__(
        self,
        *,
        position: Position,
        membership: Membership,
        heartbeat: Heartbeat | NullHeartbeat,
        shared: SharedObjects,
        loaders: list[Loader],
        reducer: Reducer,
        hooks: OptimizerHooks,
        consistency: Consistency,
        parameters: ReducedParameters,
        announcement: StateAnnouncement,
    ) -> None:
        """Made once the script has made everything, before any state has come."""
        self._position = position
        self._membership = membership
        self._heartbeat = heartbeat
        self._shared = shared
        self._loaders = loaders
        self._reducer = reducer
        self._hooks = hooks
        self._consistency = consistency
        self._parameters = parameters
        self._announcement = announcement
        self._catch_up: CatchUp | None = None
        """What this worker was given, until its first own step."""
        self.joined = 0
        """The tick at which this worker became a member."""
        self.newcomer = False
        """Others hold the state as well: this worker is not needed."""
        self.resend = False
        """The state that was given was changed on the way to the first step: it is asked for once more."""
        self.resume_point: ResumePoint | None = None
        """The checkpoint that the first member's state comes from."""
        self.reload: Callable[[], Place] | None = None
        """Loads the state once more and gives its place, where it does not come from other workers."""
        self._attributes_then: Mapping[str, Mapping[str, object]] = {}
        """Attributes of the shared modules as the job had them where this worker got its state, until they have been compared."""
        self._left_unset = ""
        """Describes what differs from them here."""
        self._groups_made = shared.groups()
        """The optimizers' parameter groups as the script made them."""
        self._attributes_made = consistency.attributes()
        """Attributes of the shared modules as the script made them."""
        self._unregistered_made = unregistered(shared.objects)
        """Their tensors that newcomers do not get, likewise."""

    # ---- the place

    def place(self, *, catching_up: bool = False) -> Place:
        """Where the job is, for newcomers and checkpoints. `catching_up` leaves out what changes on the way there."""
        position, reducer, parameters = self._position, self._reducer, self._parameters
        assert reducer.buffers is not None and reducer.gradients is not None
        groups = self._shared.groups()
        place: Place = {
            "step": position.step,
            "epoch": position.epoch,
            "loaders": [loader.to_dict() for loader in self._loaders],
            "tick": self._membership.seat.tick,
            "save": position.save_at,
            "moving": sorted(reducer.buffers.moving),
            "active": position.active_loader,
            "eager": [reducer.gradients.eager, reducer.gradients.twice],
            "groups": groups if groups != self._groups_made else {},
            "reduced": sorted(parameters.reduced),
            "gradients": dict(self._hooks.pending()),
            "optimizer_steps": dict(self._hooks.steps),
            "variables": self._variables(),
            "thawed": sorted(parameters.thawed),
            "attributes": self._consistency.attributes(without=parameters.frozen_between_steps()),
        }
        if catching_up:
            del place["tick"], place["save"], place["variables"], place["attributes"]
        return place

    def flatten(self) -> tuple[JsonValue, list[torch.Tensor]]:
        """The whole state of this moment: shared objects and place."""
        return self._shared.flatten(self.place())

    def restore(self, place: Place) -> int:
        """Goes to a place in the job and returns its tick. Until its first step this worker then catches up."""
        self._apply(place)
        self._position.directives = Directives(save=place["save"]) if place["save"] else Directives()
        active = place["active"] if "active" in place else trained_loader(self._loaders, place)
        if active is not None:
            self._position.active_loader = active
            self._catch_up = CatchUp(
                lambda: self._shared.flatten(self.place(catching_up=True)),
                loader=active,
                variables=place.get("variables", {}),
                attributes=place.get("attributes", {}),
            )
            self._membership.catching_up = True
        return int(place["tick"])

    def _apply(self, place: Place) -> None:
        parameters, reducer = self._parameters, self._reducer
        self._position.step, self._position.epoch = place["step"], place["epoch"]
        parameters.thawed = set(place.get("thawed", ()))
        reduced = set(place.get("reduced", parameters.reduced))
        if reduced != parameters.reduced:
            parameters.prepare(reduced)
        for loader, saved in zip(self._loaders, place["loaders"], strict=False):
            loader.restore(saved)
        assert reducer.buffers is not None and reducer.gradients is not None
        reducer.buffers.moving = set(place["moving"])
        reducer.gradients.eager, reducer.gradients.twice = place.get("eager", [False, False])
        self._hooks.steps = dict(place.get("optimizer_steps", {}))
        gradients = place.get("gradients", {})
        for number, parameter in enumerate(self._shared.all_parameters()):
            parameter.grad = gradients.get(number)

    # ---- where the state comes from

    def resume(self) -> int:
        """The first member's state: from the checkpoint to go on from, or from its script. Returns its tick."""
        if self.resume_point is None:
            return 0
        place = self.resume_point.resume()
        self.reload = self.resume_point.reload
        return self.restore(place)

    def carry_on(self, skeleton: object, tensors: list[torch.Tensor]) -> None:
        """This process was a member before its script ran out of memory, and still is: it goes on with that state."""
        copies = [tensor.clone() for tensor in tensors]
        self.reload = lambda: self._shared.load(skeleton, copies)
        self.newcomer = self._membership.size > 1
        self.restore(self._shared.load(skeleton, tensors))
        self._position.directives = Directives()  # those for this boundary were followed before

    def receive(self, group: ProcessGroup, roster: Roster) -> int:
        """Receives the state from the members that hold it, or sends it where this worker holds it. Returns its tick.

        In the first roster the first member has the state from its script.
        """
        seat, routes = self._membership.seat, TransferTopology.of(roster)
        if group.rank in routes.holders:
            if seat.tick is None:
                seat.tick = self.resume()
            self.send(group, roster)
            return seat.tick
        self.newcomer = bool(roster.base)
        return self.restore(self._receive(group, routes))

    def _receive(self, group: ProcessGroup, routes: TransferTopology) -> Place:
        """Receives the state. Returns the place that came with it."""
        self._heartbeat.activity(Activity.SWITCH)
        failpoint("receive")
        skeleton, tensors = transfer.receive(group, routes=routes, buffers=self._announcement.receive_buffers)
        failpoint("received")
        return self._shared.load(skeleton, tensors)

    def send(self, group: ProcessGroup, roster: Roster) -> None:
        """Gives the roster's newcomers the state."""
        routes = TransferTopology.of(roster)
        if not routes.newcomers:
            return
        self._heartbeat.activity(Activity.SWITCH)
        failpoint("send")
        skeleton, tensors = self.flatten()
        transfer.send(group, skeleton, tensors, routes=routes)
        failpoint("sent")

    def send_again(self, behind: list[int]) -> None:
        """In the middle of a pass: members that have lost what they were given get it from the others."""
        group = self._membership.group
        assert group is not None
        if len(behind) == group.size:
            raise ScriptError(
                "code between `job.epochs` and `for step in data` has changed the shared state on every worker: move "
                "it after the loop over the steps"
            )
        routes = TransferTopology.between([member.address[0] for member in group.roster.members], newcomers=behind)
        if group.rank in behind:
            self._apply(self._receive(group, routes))
        else:
            transfer.send(group, *self.flatten(), routes=routes)
        self._heartbeat.activity(Activity.OUTSIDE)
        self.resend = False

    def at_boundary(self) -> None:
        """Describes the state for newcomers, if any have asked."""
        self._announcement.at_boundary(self.place)

    # ---- catching up

    @property
    def active_loader(self) -> int | None:
        """The training loader whose loop the job is in, on a worker that catches up with it."""
        return self._catch_up.loader if self._catch_up is not None else None

    def astray(self, what: str) -> BaseException:
        """This worker's script has passed the place where the job trains without training there."""
        return self.refusal(
            f"its script {what} without reaching the loop over loader {self.active_loader} where the job is, step "
            f"{self._position.step}: whatever decides that must be the same on every worker (job.epochs, job.step, shared state)"
        )

    def refusal(self, text: str) -> BaseException:
        """Why this worker cannot take part. A newcomer goes and the job goes on; where everybody has just begun, the job fails."""
        return Misplaced(text) if self.newcomer else ScriptError(text)

    def check_draw(self) -> None:
        """A worker that catches up draws its first step: not by a counter that began anew."""
        wrong = counted_draws(step=self._position.step)
        if wrong:
            raise self.refusal(wrong)

    def arrived(self) -> None:
        """The script has reached the loop that the job is in: the state is put back as it was given."""
        catch_up, self._catch_up, self._membership.catching_up = self._catch_up, None, False
        assert catch_up is not None
        wrong = difference(catch_up.variables, self._variables(arriving=True), position=self._loaders[catch_up.loader].step)
        if wrong:
            raise self.refusal(wrong)

        def load(skeleton: object, tensors: list[torch.Tensor]) -> None:
            self._apply(self._shared.load(skeleton, tensors))

        self._attributes_then = catch_up.attributes
        intact = catch_up.finish(load)
        if not intact and self.reload is not None:
            self._apply(self.reload())
        self.resend = not intact and self.reload is None
        self.reload = None

    def begin_pass(self) -> None:
        """Before this worker's first training pass: attributes of modules that the job had set, and that are still as the script
        has made them, were set by code that will not run again.

        A newcomer is compared with members that were there before, in the exchange, which names both. It is refused here only if
        all of them are gone.
        """
        if not self._attributes_then:
            return
        self._left_unset = self._find_unset(self._attributes_then)
        if not self.newcomer or self._membership.size == 1:
            self.compared(with_older=False)

    def compared(self, *, with_older: bool) -> None:
        """An exchange has found this worker equal to the others. Where none of them is older, only the state that it was sent
        tells what the job had set."""
        if self._left_unset and not with_older:
            raise ScriptError(f"{self._left_unset}: it was set by code that has not run here. {SET_AGAIN}")
        self._attributes_then, self._left_unset = {}, ""

    def _find_unset(self, then: Mapping[str, Mapping[str, object]]) -> str:
        made, now = self._attributes_made, self._consistency.attributes()
        left = {
            path: {key: value for key, value in values.items() if now.get(path, {}).get(key) == made.get(path, {}).get(key)}
            for path, values in then.items()
        }
        own = {path: {key: now.get(path, {}).get(key) for key in values} for path, values in left.items()}
        return first_difference([left, own], ["the job", "this worker"])

    def _variables(self, *, arriving: bool = False) -> Mapping[str, object]:
        values = variables(self._shared.objects, [loader.changes for loader in self._loaders], arriving=arriving)
        if not arriving:
            return values
        now = unregistered(self._shared.objects)
        moved = {name for name, described in now.items() if self._unregistered_made.get(name) != described}
        return {name: value for name, value in values.items() if name not in moved}  # an evaluation on the way has set them


def trained_loader(loaders: Sequence[Loader], place: Place) -> int | None:
    """The loader whose loop the job was in, which version 0.1 did not write: one that has begun, or the next of those that have
    not had this epoch."""
    pairs = zip(loaders, place["loaders"], strict=False)
    training = [(not saved["step"], saved["epoch"], loader.number) for loader, saved in pairs if loader.train]
    return min(training)[2] if training and place["step"] else None


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """A tensor as it was given."""

    tensor: torch.Tensor
    copy: torch.Tensor | None
    version: int
    sample: int

    @staticmethod
    def of(tensor: torch.Tensor) -> GivenTensor:
        if tensor.nbytes <= SMALL_BYTES:
            return GivenTensor(tensor, tensor.detach().clone(), 0, 0)
        return GivenTensor(tensor, None, tensor._version, _sample(tensor))

    @property
    def intact(self) -> bool:
        """A large tensor is as it was given."""
        return self.copy is not None or (self.tensor._version == self.version and _sample(self.tensor) == self.sample)

    def same(self, now: torch.Tensor) -> bool:
        """Whether the state still has this tensor, with this content."""
        if self.copy is None:
            return now.data_ptr() == self.tensor.data_ptr() and self.intact
        return now.shape == self.copy.shape and now.dtype == self.copy.dtype and _equal(now, self.copy)


class CatchUp:
    """What a worker was given, and where the job stands."""

    def __init__(
        self,
        flatten: Callable[[], tuple[object, list[torch.Tensor]]],
        *,
        loader: int,
        variables: Mapping[str, object],
        attributes: Mapping[str, Mapping[str, object]],
    ) -> None:
        """`flatten` reads the shared state, just loaded."""
        self.variables = variables
        """Deciding variables of the script's own, as the job's workers have them."""
        self.attributes = attributes
        """Plain attributes of the shared modules, likewise."""
        self.loader = loader
        """The training loader whose loop the job is in."""
        self._flatten = flatten
        self._skeleton, tensors = flatten()
        self._given = [GivenTensor.of(tensor) for tensor in tensors]

    def finish(self, load: Callable[[object, list[torch.Tensor]], None]) -> bool:
        """Puts the state back. False if large tensors were changed, so that it has to come once more."""
        if not all(tensor.intact for tensor in self._given):
            return False
        skeleton, tensors = self._flatten()
        changed = skeleton != self._skeleton or len(tensors) != len(self._given)
        if changed or not all(tensor.same(now) for tensor, now in zip(self._given, tensors, strict=True)):
            load(self._skeleton, [tensor.tensor if tensor.copy is None else tensor.copy for tensor in self._given])
        return True


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit: NaN equals itself."""
    return checksum(tensor) == checksum(other) and torch.equal(
        tensor.nan_to_num() if tensor.is_floating_point() else tensor, other.nan_to_num() if other.is_floating_point() else other
    )


def _sample(tensor: torch.Tensor) -> int:
    flat = tensor.detach().view(-1) if tensor.is_contiguous() else tensor.detach()
    return checksum(flat[:: max(1, tensor.numel() // SAMPLES)] if tensor.is_contiguous() else flat)
