"""Going on from a checkpoint: its bytes into the job's tensors, checked on the way. Nothing in it can be code.

Every byte is hashed as it is read, so a checkpoint that was cut, flipped or swapped is refused by the path of the file, before the
job has made a step with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch

from stretto.core.errors import Refused, ScriptError
from stretto.core.manifest import Identity, Manifest, Shard, compare
from stretto.train.checkpoint.catalog import choose, previous
from stretto.train.checkpoint.shard_layout import header
from stretto.train.checkpoint.storage import CheckpointStorage, StoredFile, open_storage
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.state_codec import as_bytes, empty

CHUNK = 16 << 20
Room = Callable[[Any, list[list[Any]]], list[torch.Tensor | None]]
"""Tensors of this worker that a state of a skeleton can be read into, by its tensors' dtypes and shapes."""


class ResumePoint:
    """The checkpoint that a job resumes from. It is read and checked when the job asks for its state."""

    def __init__(
        self,
        *,
        url: str,
        step: int,
        identity: Identity,
        shared: SharedObjects,
        allow_mixed: bool,
        loaded: Callable[[int, str | None], None],
    ) -> None:
        """`identity` is the job as its script made it, which has to fit. `loaded` is called with the checkpoint's step, and
        with what differed in the run that wrote it and was allowed."""
        self._url = url
        self._step = step
        self._identity = identity
        self._shared = shared
        self._allow_mixed = allow_mixed
        self._loaded = loaded

    def resume(self) -> dict[str, Any]:
        """Loads the state into the shared objects. Returns the place in the job."""
        manifest, place, allowed = self._load()
        mixed = allowed or str(manifest.extra.get("allowed", ""))
        self._loaded(manifest.step, mixed if allowed or manifest.mixed else None)
        return place

    def reload(self) -> dict[str, Any]:
        """Loads the state once more."""
        return self._load()[1]

    def _load(self) -> tuple[Manifest, dict[str, Any], str]:
        manifest, tensors, allowed = load(
            self._url, step=self._step, own=self._identity, room=self._shared.in_place, allow_mixed=self._allow_mixed
        )
        return manifest, {**self._shared.load(manifest.skeleton, tensors), "save": 0}, allowed


def load(url: str, *, step: int, own: Identity, room: Room, allow_mixed: bool) -> tuple[Manifest, list[torch.Tensor], str]:
    """The manifest, its tensors, and what is different and was allowed. `ScriptError` where the job cannot go on from it."""
    storage = open_storage(url)
    entry = choose(storage, step=step)
    assert entry is not None and entry.manifest is not None
    manifest = entry.manifest
    allowed = _admit(manifest, own, path=entry.path, allow_mixed=allow_mixed)
    try:
        tensors = _tensors(storage, manifest, room)
    except (Refused, OSError) as error:
        raise ScriptError(f"the checkpoint {entry.path} cannot be used: {error}; {previous(storage, step)}") from error
    return manifest, tensors, allowed


def _admit(manifest: Manifest, own: Identity, *, path: str, allow_mixed: bool) -> str:
    differences = compare(manifest, own)
    if differences.shape:
        raise ScriptError(
            f"the checkpoint {path} does not fit this job: {differences.text()}: resume with the script and arguments that "
            "wrote it, or start a new run"
        )
    if differences.bits and not allow_mixed:
        raise ScriptError(
            f"going on from {path} would change the bits: {differences.text()}: make them alike, or go on with "
            "--allow-mixed, which gives up the promise of the same bits and records it"
        )
    return differences.text() if differences.bits else ""


def _tensors(storage: CheckpointStorage, manifest: Manifest, room: Room) -> list[torch.Tensor]:
    specs: list[list[Any]] = [[tensor.dtype, list(tensor.shape)] for tensor in manifest.tensors]
    own = room(manifest.skeleton, specs)
    tensors = [empty(spec) if tensor is None else tensor for spec, tensor in zip(specs, own, strict=True)]
    flats = [as_bytes(tensor) for tensor in tensors]
    filled = [0] * len(tensors)
    for shard in manifest.shards:
        _fill(storage, manifest, shard, flats)
        for piece in shard.pieces:
            filled[piece.tensor] += piece.high - piece.low
    for tensor, count in zip(manifest.tensors, filled, strict=True):
        if count != tensor.elements:
            raise Refused(f"{count} of the {tensor.elements} elements of {tensor.name} are in its shards")
    return tensors


def _fill(storage: CheckpointStorage, manifest: Manifest, shard: Shard, flats: list[torch.Tensor]) -> None:
    folder = manifest.folder
    path = storage.where(folder, shard.file)
    expected = header(manifest.tensors, shard.pieces)
    sha = hashlib.sha256()
    with storage.open(folder, shard.file) as file:
        start = _read_into(file, memoryview(bytearray(len(expected))), path)
        sha.update(start)
        for piece in shard.pieces:
            step = flats[piece.tensor].numel() // max(1, manifest.tensors[piece.tensor].elements)
            view = flats[piece.tensor][piece.low * step : piece.high * step].numpy().data
            for low in range(0, len(view), CHUNK):
                sha.update(_read_into(file, view[low : low + CHUNK], path))
        if file.read(1):
            raise Refused(f"{path} is longer than the {shard.bytes} bytes that were written")
    if sha.hexdigest() != shard.sha256 or bytes(start) != expected:
        raise Refused(f"{path} is damaged: its content does not have the SHA-256 that the manifest names")


def _read_into(file: StoredFile, view: memoryview, path: str) -> memoryview:
    """Fills the memory, or raises `Refused` where the file is too short."""
    place = 0
    while place < len(view):
        count = file.readinto(view[place:])
        if not count:
            raise Refused(f"{path} is cut off: {len(view) - place} bytes are missing")
        place += count
    return view
