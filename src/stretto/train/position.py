"""Where the job is. All counting of steps, epochs and samples happens here, and only the step runner advances it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from stretto.train.data.step import Step


class Directives(TypedDict, total=False):
    """What a header says about the next boundary; JSON. All but `unsaved` come from the chief."""

    save: int
    """The boundary at which all members save."""
    plan: dict[str, list[int | str]]
    """Batch, parts and the reason for them, by the number of the loader."""
    unsaved: list[int | str]
    """Step and roster of a save that has failed on this member, and why."""


@dataclass(slots=True)
class LoaderPosition:
    """The position in one loader: its epoch, and how much of that epoch is in finished steps."""

    batch: int
    """Samples in its next step."""
    epoch: int = 0
    step: int = 0
    """Steps finished in this epoch."""
    consumed: int = 0
    """Samples of this epoch in finished steps."""

    def advance(self, samples: int) -> None:
        """Counts a step of the present epoch."""
        self.step += 1
        self.consumed += samples

    def rewind(self) -> None:
        """Goes back to the beginning of the present epoch."""
        self.step = self.consumed = 0

    def next_epoch(self) -> None:
        """Goes to the beginning of the next epoch."""
        self.epoch += 1
        self.rewind()

    def restore(self, saved: Mapping[str, int]) -> None:
        """Goes to a position that `to_dict` described."""
        self.epoch, self.step, self.consumed, self.batch = saved["epoch"], saved["step"], saved["consumed"], saved["batch"]

    def to_dict(self) -> dict[str, int]:
        """As digests, newcomers and checkpoints have it."""
        return {"epoch": self.epoch, "step": self.step, "consumed": self.consumed, "batch": self.batch}


@dataclass(slots=True)
class Position:
    """The position of the whole job, alike on all workers, and the step that this worker's script is in."""

    step: int = 0
    """Training steps finished by the job."""
    epoch: int | None = None
    """The present epoch of `job.epochs`; None without it."""
    epochs: int | None = None
    """How many epochs `job.epochs` was asked for."""
    loaders: list[LoaderPosition] = field(default_factory=list[LoaderPosition])
    active_loader: int | None = None
    """The training loader whose loop the script is in."""
    directives: Directives = field(default_factory=Directives)
    """What the chief decided in the last exchange for the next boundary."""
    save_at: int = 0
    """The boundary at which all members save. Newcomers that are admitted there hear of it with the state."""
    open: Step | None = None
    """The step that the script iterates over, in training or evaluation."""
    training: Step | None = None
    """The training step between its boundary and its commit."""
    left: Step | None = None
    """The training step at which the script left `for step in data`. It is committed when the script goes on, not if it raises."""

    def begin_step(self, step: Step) -> None:
        """The script gets this training step."""
        self.open = self.training = step

    def commit(self, step: Step) -> None:
        """A training step is finished on all workers."""
        self.step += 1
        step.loader.position.advance(step.count)

    def to_dict(self) -> dict[str, object]:
        """What `job.digest` has of the position."""
        return {"step": self.step, "epoch": self.epoch, "loaders": [loader.to_dict() for loader in self.loaders]}
