"""A worker's part of a checkpoint: copied at a boundary, written by a thread of low priority while training goes on.

All members copy at the same boundary, because the chief announces it in the exchange before. Each writes its share and a small note
beside it; the chief waits for all notes and then writes the manifest, which completes the checkpoint. There is one save at a time:
while one is under way the next is skipped, so a slow disk costs checkpoints, but neither steps nor memory.

Names of shards and notes carry life and roster, so what a stale worker writes is never taken for something else, and the fence in
the folder keeps a stale chief from committing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from stretto.core import threads
from stretto.core.errors import Refused, StrettoError
from stretto.core.journal import Checkpoint
from stretto.core.manifest import NAME, Identity, Manifest, Piece, Shard, folder_name
from stretto.train.checkpoint.catalog import check_fence, claim, mark, raise_fence, tidy
from stretto.train.checkpoint.snapshot import Memory, Snapshot
from stretto.train.checkpoint.storage import CheckpointStorage, Stream, open_storage
from stretto.train.entry.failpoints import failpoint
from stretto.train.position import Directives

if TYPE_CHECKING:
    from stretto.train.membership import Membership
    from stretto.train.position import Position
    from stretto.train.reporting import AgentReporter
    from stretto.train.sharing.shared_objects import SharedObjects

CHUNK = 4 << 20
PARTS_S = 60.0
"""The chief waits at least this long for the parts of the others, counted from the end of its own,"""
PATIENCE = 10.0
"""and at least this many times as long as its own part took: longer than any difference between disks."""
NICE = 5
"""Yields to training, yet runs on a full machine: a thread that holds the interpreter's lock must not starve."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Where and how often to save, from STRETTO_OPTIONS."""

    url: str
    run: str
    run_id: str
    every_steps: int | None = None
    every_s: float | None = None
    keep: int = 3
    life: int = 1
    grace_s: float = 30.0
    """How long the end of the job waits for the last save."""


class SaveAborted(StrettoError):
    """This save will not become a checkpoint. The text says why."""


@dataclass(slots=True)
class Save:
    """One save on one worker, from its copy to its end."""

    step: int
    roster: int
    writer: int
    writers: int
    snapshot: Snapshot
    place: Mapping[str, Any]
    final: bool
    blocked_s: float
    began: float = field(default_factory=time.monotonic)
    broken: str = ""
    """Why it can only be finished if all parts are there already; empty while nothing is wrong."""
    over: threading.Event = field(default_factory=threading.Event)
    committed: bool = False
    """The manifest is there, as far as this worker has looked."""

    @property
    def folder(self) -> str:
        return folder_name(self.step, final=self.final)


class Saver:
    """Takes the saves of one worker, one at a time. A save that fails costs a checkpoint and nothing else."""

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        identity: Identity,
        position: Position,
        membership: Membership,
        shared: SharedObjects,
        reporter: AgentReporter,
        place: Callable[[], dict[str, Any]],
    ) -> None:
        """`identity` is the job as its script made it; `place` describes where it is, for newcomers and checkpoints."""
        self.config = config
        self.mixed = ""
        """What was different from the checkpoint that the run went on from, and allowed."""
        self._position = position
        self._membership = membership
        self._shared = shared
        self._reporter = reporter
        self._place = place
        self._identity = identity
        self._storage: CheckpointStorage = open_storage(config.url)
        self._memory = Memory()
        self._save: Save | None = None
        self._failed: list[int | str] = []
        self._due_at = time.monotonic() + (config.every_s or 0.0)
        self._skipped = 0
        self._prepared = 0
        """The roster whose shares fit into the memory."""
        self.saved: int = -1
        """The step of the last save that was begun here or gone on from."""

    def resumed(self, step: int, *, mixed: str) -> None:
        """The job went on from the checkpoint of this step, `mixed` where something was different and allowed."""
        self.saved, self.mixed = step, mixed

    # ---- what the exchange carries

    def note(self) -> Directives:
        """For the header of a training exchange: the chief's order to save at the next boundary, or a member's failed save."""
        note = Directives()
        if self._membership.chief and self._due(self._position.step + 1):
            note["save"] = self._position.step + 1
        if self._failed:
            note["unsaved"] = self._failed
        return note

    def _due(self, step: int) -> bool:
        due = (step % self.config.every_steps == 0) if self.config.every_steps else time.monotonic() >= self._due_at
        if not due or step <= self.saved:
            return False
        if self._busy:
            self._skip(step)
            return False
        return True

    def _skip(self, step: int) -> None:
        if self._save is not None and self._skipped != self._save.step:
            self._skipped = self._save.step
            elapsed = time.monotonic() - self._save.began
            self._reporter.warn(
                f"the save of step {self._save.step} is still under way after {elapsed:.1f} s, so step {step} is not saved: "
                "checkpoint less often (--checkpoint-every) or to a faster place"
            )

    @property
    def _busy(self) -> bool:
        return self._save is not None and not self._save.over.is_set()

    def receive_notes(self, notes: list[Directives]) -> None:
        """Takes the notes of all members, by rank, after an exchange."""
        self._failed = []
        for note in notes:
            failure = note.get("unsaved")
            if failure and self._save is not None and failure[:2] == [self._save.step, self._save.roster]:
                self._save.broken = self._save.broken or str(failure[2])

    # ---- boundaries

    def at_boundary(self, directives: Directives) -> None:
        """Begins the save that the chief has ordered for this boundary, or makes its memory ready."""
        if directives.get("save") == self._position.step:
            self._begin(final=False)
        elif self._position.step and self._prepared != self._membership.roster.number and not self._busy:
            self._prepared = self._membership.roster.number
            skeleton, tensors = self._shared.flatten(self._place())
            self._memory.prepare(skeleton, tensors, writer=self._membership.rank, writers=len(self._membership.roster.members))

    def last(self, *, final: bool = False) -> bool:
        """Saves this moment and waits for the end of the save. False if the roster broke meanwhile: the caller tries again."""
        until = time.monotonic() + self.config.grace_s
        self._wait(until)
        if self._done_already(final):
            return True
        self._begin(final=final)
        return self._wait(until)

    def _done_already(self, final: bool) -> bool:
        return (
            self._save is not None and self._save.step == self._position.step and self._save.committed and self._save.final == final
        )

    def _wait(self, until: float) -> bool:
        """Waits for the save under way, here and (by its manifest) on the chief."""
        save = self._save
        if save is None:
            return True
        while time.monotonic() < until:
            if save.over.wait(0.02) and (save.committed or save.broken or self._settled(save)):
                return not self._halted()
            if self._halted():
                save.broken = save.broken or "the roster broke"
                save.over.wait(max(0.0, until - time.monotonic()))
                return False
        self._reporter.warn(
            f"the save of step {save.step} was not finished within {self.config.grace_s:g} s (--grace): the job ends without it"
        )
        return True

    def _settled(self, save: Save) -> bool:
        """Whether waiting is over: the manifest is there, or the chief has given up and removed the parts."""
        try:
            files = self._storage.files(save.folder)
        except OSError:
            return True
        save.committed = NAME in files
        return save.committed or f"part-{self._mark(save, save.writer)}.json" not in files

    def _halted(self) -> bool:
        return self._membership.seat.roster is None

    def leave(self) -> None:
        """Before this worker leaves: finishes its part, which holds up no other worker."""
        if self._save is not None:
            self._save.over.wait(self.config.grace_s)

    def broke(self) -> None:
        """The roster broke: a save that lacks a part will never be complete."""
        if self._busy and self._save is not None:
            self._save.broken = self._save.broken or "the roster broke before all parts were written"

    # ---- one save

    def _begin(self, *, final: bool) -> None:
        membership, step = self._membership, self._position.step
        if self._busy:
            assert self._save is not None
            self._failed = [step, membership.roster.number, f"{membership.worker} still writes its part of step {self._save.step}"]
            return
        failpoint("save-copy")
        before = time.monotonic()
        place = self._place()
        skeleton, tensors = self._shared.flatten(place)
        snapshot = self._memory.snapshot(skeleton, tensors, writer=membership.rank, writers=len(membership.roster.members))
        save = Save(
            step=step,
            roster=membership.roster.number,
            writer=membership.rank,
            writers=len(membership.roster.members),
            snapshot=snapshot,
            place=place,
            final=final,
            blocked_s=time.monotonic() - before,
            began=before,
        )
        self._save, self.saved, self._prepared = save, step, save.roster
        self._due_at = before + (self.config.every_s or 0.0)
        threads.start(self._run, save, name=f"stretto-save-{step}")

    def _run(self, save: Save) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            if save.writer == 0:
                claim(self._storage, run=self.config.run, run_id=self.config.run_id)
                raise_fence(self._storage, life=self.config.life, roster=save.roster)
            self._write(save)
            if save.writer == 0:
                self._commit(save)
        except Exception as error:  # any error costs this save and nothing else; nothing else would report it
            self._give_up(save, error)
        finally:
            save.over.set()

    def _mark(self, save: Save, writer: int) -> str:
        return mark(life=self.config.life, roster=save.roster, writer=writer, writers=save.writers)

    def _write(self, save: Save) -> None:
        """This worker's shard and the note beside it."""
        self._storage.make(save.folder)
        file = f"shard-{self._mark(save, save.writer)}.safetensors"
        image = save.snapshot.image.numpy().data
        stream = self._storage.stream(save.folder, file, size=len(image))
        try:
            sha = self._pour(save, image, stream)
            failpoint("save-sync")
            stream.close()
        except BaseException:
            stream.abandon()
            raise
        failpoint("save-synced")
        part = {
            "file": file,
            "bytes": len(image),
            "sha256": sha,
            "roster": save.roster,
            "life": self.config.life,
            "pieces": [asdict(piece) for piece in save.snapshot.pieces],
        }
        self._storage.put(save.folder, f"part-{self._mark(save, save.writer)}.json", json.dumps(part).encode())

    def _pour(self, save: Save, image: memoryview, stream: Stream) -> str:
        sha = hashlib.sha256()
        for low in range(0, len(image), CHUNK):
            if save.broken:
                raise SaveAborted(save.broken)
            chunk = image[low : low + CHUNK]
            sha.update(chunk)
            stream.write(chunk)
            failpoint("save-write")
        return sha.hexdigest()

    def _commit(self, save: Save) -> None:
        """The chief's part: all notes, then the manifest, then what is no longer needed."""
        wrote_s = time.monotonic() - save.began
        shards = self._collect(save, until=time.monotonic() + max(PARTS_S, PATIENCE * wrote_s))
        manifest = Manifest(
            run=self.config.run,
            run_id=self.config.run_id,
            life=self.config.life,
            roster=save.roster,
            step=save.step,
            tick=int(save.place["tick"]),
            epoch=save.place["epoch"],
            identity=self._identity,
            skeleton=save.snapshot.skeleton,
            tensors=save.snapshot.tensors,
            shards=shards,
            final=save.final,
            mixed=bool(self.mixed),
            created=time.time(),
            extra={"allowed": self.mixed} if self.mixed else {},
        )
        check_fence(self._storage, life=self.config.life, roster=save.roster)
        failpoint("save-manifest")
        self._storage.put(save.folder, NAME, manifest.encode(), durable=True)
        failpoint("save-renamed")
        save.committed = True
        self._reporter.send(
            Checkpoint(
                step=save.step,
                path=self._storage.where(save.folder),
                bytes=manifest.bytes,
                seconds=round(time.monotonic() - save.began, 6),
                blocked_s=round(save.blocked_s, 6),
                roster=save.roster,
                final=save.final,
            )
        )
        with contextlib.suppress(OSError):
            tidy(self._storage, keep=self.config.keep, newest=manifest)

    def _collect(self, save: Save, *, until: float) -> tuple[Shard, ...]:
        notes = [f"part-{self._mark(save, writer)}.json" for writer in range(save.writers)]
        pause = 0.005
        while missing := [name for name in notes if name not in self._storage.files(save.folder)]:
            if save.broken:
                raise SaveAborted(save.broken)
            if time.monotonic() > until:
                raise SaveAborted(f"{len(missing)} of {save.writers} parts have not come ({missing[0]})")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        return tuple(self._shard(save, name) for name in notes)

    def _shard(self, save: Save, name: str) -> Shard:
        part = json.loads(self._storage.read(save.folder, name))
        if (part["life"], part["roster"]) != (self.config.life, save.roster):
            raise Refused(f"{self._storage.where(save.folder, name)} is of roster {part['roster']}, this save of {save.roster}")
        return Shard(part["file"], part["bytes"], part["sha256"], tuple(Piece(**piece) for piece in part["pieces"]))

    def _give_up(self, save: Save, error: Exception) -> None:
        """Reports why, and removes what this worker has written: training goes on, the last checkpoint stays."""
        reason = _reason(error)
        save.broken = save.broken or reason
        self._failed = [save.step, save.roster, reason[:200]]
        path = self._storage.where(save.folder)
        with contextlib.suppress(OSError):
            for name in (f"shard-{self._mark(save, save.writer)}.safetensors", f"part-{self._mark(save, save.writer)}.json"):
                self._storage.remove(save.folder, name)
            if save.writer == 0 and NAME not in self._storage.files(save.folder):
                self._storage.remove_folder(save.folder)
        if isinstance(error, OSError):
            fix = "training goes on with the last checkpoint; make room or make it writable, the next save tries again"
            self._reporter.warn(f"the checkpoint {path} could not be written: {reason}: {fix}")
        elif save.writer == 0 or not isinstance(error, SaveAborted):
            self._reporter.warn(
                f"the checkpoint {path} was given up: {reason}; the last complete one stays, the next save tries again"
            )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, StrettoError) else f"{type(error).__name__}: {error}"
