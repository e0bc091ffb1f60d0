"""The contents of a storage: complete checkpoints and leftovers, the run that owns it, and what may be deleted. No torch here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from stretto.core.errors import Refused, SchemaError, Stale, UsageError
from stretto.core.manifest import NAME, Manifest, is_final, step_of
from stretto.core.schema import parse
from stretto.train.checkpoint.storage import CheckpointStorage

OWNER = "owner.json"
FENCE = "fence.json"
CHUNK = 8 << 20
_MARK = re.compile(r"(?:shard|part)-(\d+)-(\d+)-\d+of\d+\.")


def mark(*, life: int, roster: int, writer: int, writers: int) -> str:
    """What the names of a writer's files carry, so that those of another attempt are never taken for them."""
    return f"{life}-{roster}-{writer}of{writers}"


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One `step-…` folder. Without a manifest it is a save that was never finished."""

    step: int
    folder: str
    path: str
    manifest: Manifest | None
    bytes: int
    problem: str = ""
    """Why there is a manifest file and no manifest, or why a shard does not fit it."""

    @property
    def final(self) -> bool:
        """Of the finished job: its weights can be exported, there is nothing to go on with."""
        return is_final(self.folder)

    @property
    def complete(self) -> bool:
        return self.manifest is not None and not self.problem


def entries(storage: CheckpointStorage) -> list[CheckpointEntry]:
    """All checkpoints and leftovers, by step. Compares sizes, not content (see `verify`)."""
    folders = [(step, folder) for folder in storage.folders() if (step := step_of(folder)) is not None]
    owner = _owner(storage) if folders else None
    return [_entry(storage, step, folder, owner) for step, folder in sorted(folders)]


def _owner(storage: CheckpointStorage) -> str | None:
    """The id of the run whose checkpoints these are, as far as that is known."""
    try:
        return str(json.loads(storage.read("", OWNER))["run_id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _entry(storage: CheckpointStorage, step: int, folder: str, owner: str | None) -> CheckpointEntry:
    files = storage.files(folder)
    size, path = sum(files.values()), storage.where(folder)
    if NAME not in files:
        return CheckpointEntry(step, folder, path, None, size)
    try:
        manifest = Manifest.decode(storage.read(folder, NAME), path=storage.where(folder, NAME))
    except Refused as error:
        return CheckpointEntry(step, folder, path, None, size, str(error))
    except FileNotFoundError:
        return CheckpointEntry(step, folder, path, None, size)
    return CheckpointEntry(step, folder, path, manifest, size, _problem(storage, folder, manifest, files, owner))


def _problem(storage: CheckpointStorage, folder: str, manifest: Manifest, files: dict[str, int], owner: str | None) -> str:
    """What is wrong with a whole manifest, or with its shards as far as their sizes show."""
    if manifest.folder != folder:
        return f"{storage.where(folder, NAME)} does not belong there: it is the manifest of {manifest.folder}"
    if owner is not None and manifest.run_id != owner:
        return f"{storage.where(folder, NAME)} does not belong there: it is of another run ({manifest.run!r})"
    for shard in manifest.shards:
        if files.get(shard.file) != shard.bytes:
            had = "is missing" if shard.file not in files else f"has {files[shard.file]} bytes instead of {shard.bytes}"
            return f"{storage.where(folder, shard.file)} {had}"
    return ""


def verify(storage: CheckpointStorage, manifest: Manifest) -> None:
    """Reads all shards. Raises `Refused` with the path of the first that differs from what was written."""
    folder = manifest.folder
    for shard in manifest.shards:
        sha = hashlib.sha256()
        try:
            with storage.open(folder, shard.file) as file:
                while chunk := file.read(CHUNK):
                    sha.update(chunk)
        except FileNotFoundError:
            raise Refused(f"{storage.where(folder, shard.file)} is missing") from None
        if sha.hexdigest() != shard.sha256:
            raise Refused(
                f"{storage.where(folder, shard.file)} is damaged: its content does not have the SHA-256 that "
                f"{storage.where(folder, NAME)} names"
            )


def choose(storage: CheckpointStorage, *, step: int | None = None, final: bool = False) -> CheckpointEntry | None:
    """The checkpoint to go on from: the last complete one, or that of a step. None where there has never been one.

    With `final` that of the finished job counts as well. A damaged one is never skipped silently.
    """
    candidates = sorted(
        (entry for entry in entries(storage) if final or not entry.final), key=lambda entry: (entry.step, entry.final)
    )
    complete = [entry for entry in candidates if entry.complete]
    if step is not None:
        for entry in reversed(complete):
            if entry.step == step:
                return entry
        problem = next((f": {entry.problem}" for entry in candidates if entry.step == step and entry.problem), "")
        raise UsageError(
            f"there is no complete checkpoint of step {step} in {storage.where()}{problem} "
            f"({_offer([entry.step for entry in complete])})"
        )
    damaged = [entry for entry in candidates if entry.problem]
    if damaged and (not complete or damaged[-1].step > complete[-1].step):
        raise UsageError(f"the last checkpoint cannot be used: {damaged[-1].problem}; {previous(storage, damaged[-1].step)}")
    return complete[-1] if complete else None


def previous(storage: CheckpointStorage, step: int) -> str:
    """What to use instead of a damaged checkpoint, in words."""
    before = [entry.step for entry in entries(storage) if entry.complete and entry.step < step]
    if not before:
        return "there is no complete one before it"
    return f"the previous complete one is of step {before[-1]}: use it with --step {before[-1]}"


def sound(storage: CheckpointStorage) -> tuple[CheckpointEntry | None, list[str]]:
    """The newest checkpoint whose every byte was read and is right, and what was wrong with newer ones."""
    problems: list[str] = []
    for entry in reversed(entries(storage)):
        if entry.final:
            continue
        if entry.problem:
            problems.append(entry.problem)
        elif entry.manifest is not None:
            try:
                verify(storage, entry.manifest)
                return entry, problems
            except Refused as error:
                problems.append(str(error))
    return None, problems


def _offer(steps: list[int]) -> str:
    return f"there are {', '.join(map(str, steps[-10:]))}" if steps else "there is none at all"


def claim(storage: CheckpointStorage, *, run: str, run_id: str) -> None:
    """Claims the storage for this run. Raises `UsageError` if another run has it, or it cannot be written."""
    text = json.dumps({"run": run, "run_id": run_id, "since": time.time()}).encode()
    try:
        storage.make("")
        if storage.create("", OWNER, text):
            others = [entry for entry in entries(storage) if entry.manifest is not None and entry.manifest.run_id != run_id]
            if not others:
                return
            storage.remove("", OWNER)
            raise UsageError(f"{others[0].path} is a checkpoint of another run: choose another --checkpoint")
        owner = parse(storage.read("", OWNER))
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(
            f"checkpoints cannot be written to {storage.where()}: it, or what it lies in, is no folder: choose another --checkpoint"
        ) from error
    except OSError as error:
        raise UsageError(
            f"checkpoints cannot be written to {storage.where()}: {error.strerror or error}: make it writable, or "
            "choose another --checkpoint"
        ) from error
    except SchemaError:
        raise UsageError(
            f"{storage.where('', OWNER)} is damaged: choose another --checkpoint, or remove the file if no run uses this folder"
        ) from None
    if owner.get("run_id") != run_id:
        raise UsageError(
            f"{storage.where()} has the checkpoints of run {owner.get('run')!r}, this is run {run!r}: choose another "
            f"--checkpoint, or go on with that run (`stretto resume {owner.get('run')}`)"
        )


def raise_fence(storage: CheckpointStorage, *, life: int, roster: int) -> None:
    """From now on no save with a lower number is committed. Raises `Stale` if this one has a lower number already."""
    check_fence(storage, life=life, roster=roster)
    storage.put("", FENCE, json.dumps({"life": life, "roster": roster}).encode())


def check_fence(storage: CheckpointStorage, *, life: int, roster: int) -> None:
    """Raises `Stale` if somebody with a higher number has raised the fence."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # a damaged fence is as good as none
        fence = json.loads(storage.read("", FENCE))
        if (fence["life"], fence["roster"]) > (life, roster):
            raise Stale(
                f"a save of roster {roster} (life {life}) is refused: {storage.where()} is at roster {fence['roster']} "
                f"(life {fence['life']})"
            )


def tidy(storage: CheckpointStorage, *, keep: int, newest: Manifest) -> list[int]:
    """Deletes what is no longer needed once `newest` is complete; the steps of the deleted.

    Keeps `newest` and the complete ones before it, `keep` in all, and the final one. Deletes leftovers, and what an earlier life of
    the run had beyond this step. What others are writing meanwhile stays.
    """
    every = [entry for entry in entries(storage) if not _under_way(storage, entry, newest) and not _foreign(entry, newest)]
    older = [entry for entry in every if entry.complete and not entry.final and entry.step < newest.step]
    kept = {newest.folder, *(entry.folder for entry in (older if newest.final else older[max(0, len(older) - (keep - 1)) :]))}
    if newest.final:
        kept |= {entry.folder for entry in every if entry.complete and not entry.final and entry.step == newest.step}
    gone = [entry for entry in every if entry.folder not in kept]
    _sweep(storage, newest)
    for entry in gone:
        drop(storage, entry.folder)
    return [entry.step for entry in gone]


def _foreign(entry: CheckpointEntry, newest: Manifest) -> bool:
    """Whether this is a checkpoint of another run, which is not ours to delete."""
    return entry.manifest is not None and entry.manifest.run_id != newest.run_id


def _under_way(storage: CheckpointStorage, entry: CheckpointEntry, newest: Manifest) -> bool:
    """Whether somebody may be writing there now: all see the manifest before its writer has tidied, and may begin the next save."""
    if entry.manifest is not None or entry.step < newest.step or entry.folder == newest.folder:
        return False
    marks = [(int(match[1]), int(match[2])) for name in storage.files(entry.folder) if (match := _MARK.match(name))]
    return not marks or max(marks) >= (newest.life, newest.roster)


def drop(storage: CheckpointStorage, folder: str) -> None:
    """The manifest goes first: half a deletion leaves leftovers, never a checkpoint that lacks a shard."""
    storage.remove(folder, NAME)
    storage.remove_folder(folder)


def _sweep(storage: CheckpointStorage, manifest: Manifest) -> None:
    """Files of earlier attempts at the same step."""
    for name in _strays(storage.files(manifest.folder), manifest):
        with contextlib.suppress(OSError):
            storage.remove(manifest.folder, name)


def _strays(files: dict[str, int], manifest: Manifest) -> Iterator[str]:
    wanted = {NAME, *(shard.file for shard in manifest.shards)}
    yield from (name for name in files if name not in wanted)
