"""A checkpoint's manifest as a value: what was saved, where its bytes lie, and whether another job can go on from it.

The manifest is the checkpoint: shards without one are leftovers. It carries a SHA-256 over itself and one over every
shard, so that what was cut, flipped or swapped is noticed and can be named.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from stretto.core.errors import Refused

FORMAT = 1
"""The layout of folders, shards and manifests. A reader refuses what is newer than itself."""
NAME = "manifest.json"
MOST_BYTES = 256 << 20
_FOLDER = re.compile(r"(?:step|final)-(\d{8,18})")
SAME_BITS = frozenset({"0.1.0", "0.2.0", "0.3.0"})
"""Versions that go on from each other's checkpoints with the same bits."""
RENAMED = {
    "threads": "torch.get_num_threads()",
    "dtype": "torch.get_default_dtype()",
    "matmul": "torch.get_float32_matmul_precision()",
    "deterministic": "torch.are_deterministic_algorithms_enabled()",
    "torch": "torch.__version__",
    "machine": "platform.machine()",
    "capability": "torch.backends.cpu.get_cpu_capability()",
    "onednn": "os.environ['ONEDNN_MAX_CPU_ISA']",
    "device": "torch.cuda.get_device_name()",
}
"""What 0.1.0 called the parts of a fingerprint."""
SHOWN = 5
"""So many differences are spelled out; the rest are counted."""


def folder_name(step: int, *, final: bool = False) -> str:
    return f"{'final' if final else 'step'}-{step:08d}"


def is_final(folder: str) -> bool:
    return folder.startswith("final-")


def step_of(folder: str) -> int | None:
    """The step that a folder's name stands for, or None for a folder of somebody else's."""
    match = _FOLDER.fullmatch(folder)
    return int(match.group(1)) if match else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements low..high-1 of a tensor, counted along its flat memory."""

    tensor: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One writer's file."""

    file: str
    bytes: int
    sha256: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Name, type and shape of a saved tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class SharedEntry:
    """One object given to `job.share`."""

    name: str
    kind: str
    module: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """What decides the bits of a job besides its data: two jobs with one identity go on from each other's checkpoints."""

    seed: int
    slices: int
    loaders: tuple[Mapping[str, object], ...]
    """As the script made them: train, batch, tail, samples, shuffle, reduction."""
    plan: Mapping[str, object]
    """The batch plan, where there is one."""
    fingerprint: Mapping[str, object]
    version: str
    objects: tuple[SharedEntry, ...]
    tensors: tuple[Tensor, ...] = ()
    """The modules' tensors, for the comparison; a manifest has them among all others."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete checkpoint. `step` is the number of training steps that its state has behind it."""

    run: str
    run_id: str
    life: int
    roster: int
    step: int
    tick: int
    epoch: int | None
    identity: Identity
    skeleton: Any
    """The state's structure: JSON with the places of the tensors (see `train/sharing/state.py`)."""
    tensors: tuple[Tensor, ...]
    shards: tuple[Shard, ...]
    final: bool = False
    """Taken after the script's end: there is nothing to go on with, but the weights can be exported."""
    mixed: bool = False
    """Workers of different fingerprints have had a part in it."""
    created: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=lambda: {})

    @property
    def folder(self) -> str:
        return folder_name(self.step, final=self.final)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def encode(self) -> bytes:
        body = _canonical(asdict(self))
        return json.dumps({"stretto": FORMAT, "sha256": _sha(body), "checkpoint": json.loads(body)}, indent=1).encode() + b"\n"

    @staticmethod
    def decode(data: bytes, *, path: str) -> Manifest:
        """Raises `Refused`, with the path, for anything that is not a whole manifest of a format that we know."""
        try:
            whole = cast("dict[str, Any]", json.loads(data))
            number, digest, document = int(whole["stretto"]), str(whole["sha256"]), whole["checkpoint"]
        except (ValueError, KeyError, TypeError):
            raise Refused(f"{path} is damaged: it is no whole manifest ({len(data)} bytes)") from None
        if number > FORMAT:
            raise Refused(f"{path} has format {number}, this version of stretto reads up to {FORMAT}: use a newer one")
        if _sha(_canonical(document)) != digest:
            raise Refused(f"{path} is damaged: its content does not have the SHA-256 that it names")
        try:
            return _read(document)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"{path} cannot be read: {error!r}") from None


def _canonical(document: object) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(document: dict[str, Any]) -> Manifest:
    identity = dict(document["identity"])
    identity["loaders"] = tuple(identity["loaders"])
    identity["objects"] = tuple(SharedEntry(**entry) for entry in identity["objects"])
    identity["tensors"] = ()
    shards = tuple(
        Shard(entry["file"], int(entry["bytes"]), entry["sha256"], tuple(Piece(**piece) for piece in entry["pieces"]))
        for entry in document["shards"]
    )
    tensors = tuple(Tensor(entry["name"], entry["dtype"], tuple(entry["shape"])) for entry in document["tensors"])
    whole: dict[str, Any] = {**document, "identity": Identity(**identity), "shards": shards, "tensors": tensors}
    return Manifest(**whole)


@dataclass(frozen=True, slots=True)
class Differences:
    """What stands between a checkpoint and a job. Other bits can be allowed, another model cannot."""

    shape: tuple[str, ...] = ()
    bits: tuple[str, ...] = ()

    def text(self) -> str:
        every = (*self.shape, *self.bits)
        rest = f"; and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
        return "; ".join(every[:SHOWN]) + rest


def compare(saved: Manifest, own: Identity) -> Differences:
    """The checkpoint's side against the job's, every difference as a phrase."""
    then = saved.identity
    shape = [
        *_scalar("slices", then.slices, own.slices),
        *_objects(then.objects, own.objects),
        *_tensors(saved.tensors, own),
        *_loaders(then.loaders, own.loaders),
    ]
    bits = [
        *_scalar("seed", then.seed, own.seed),
        *_mapping("batch plan: ", then.plan, own.plan),
        *_fingerprints(then.fingerprint, own.fingerprint),
    ]
    if not {then.version, own.version} <= SAME_BITS:
        bits += _scalar("stretto", then.version, own.version)
    return Differences(tuple(shape), tuple(bits))


def _scalar(name: str, then: object, now: object) -> Iterator[str]:
    if then != now:
        yield f"{name} is {then} in the checkpoint and {now} here"


def _mapping(name: str, then: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for key in sorted({*then, *now}):
        yield from _scalar(f"{name}{key}", then.get(key), now.get(key))


def _fingerprints(then: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """Of a checkpoint of 0.1.0, which knew fewer settings, what both have. It switched TF32 off, whatever the script said."""
    if RENAMED.keys() & then.keys():
        then = {RENAMED.get(key, key): str(value) for key, value in then.items()}
        if then.get("torch.cuda.get_device_name()", "cpu") != "cpu":
            then.update({"torch.backends.cuda.matmul.allow_tf32": "False", "torch.backends.cudnn.allow_tf32": "False"})
        now = {key: value for key, value in now.items() if key in then}
        then = {key: value for key, value in then.items() if key in now}
    yield from _mapping("", then, now)


def _loaders(then: Sequence[Mapping[str, object]], now: Sequence[Mapping[str, object]]) -> Iterator[str]:
    yield from _scalar("the number of loaders", len(then), len(now))
    for number, (entry, other) in enumerate(zip(then, now, strict=False)):  # an older version wrote fewer of their options
        yield from _mapping(f"loader {number}: ", entry, {key: value for key, value in other.items() if key in entry})


def _objects(then: Sequence[SharedEntry], now: Sequence[SharedEntry]) -> Iterator[str]:
    kinds = {entry.name: entry.kind for entry in then}, {entry.name: entry.kind for entry in now}
    for name in sorted({*kinds[0], *kinds[1]}):
        yield from _scalar(f"job.share({name}=…)", kinds[0].get(name, "missing"), kinds[1].get(name, "missing"))


def _tensors(then: Sequence[Tensor], own: Identity) -> Iterator[str]:
    modules = tuple(f"{entry.name}/" for entry in own.objects if entry.module)
    saved = {entry.name: str(entry) for entry in then if entry.name.startswith(modules)} if modules else {}
    here = {entry.name: str(entry) for entry in own.tensors}
    for name in sorted({*saved, *here}):
        yield from _scalar(name, saved.get(name, "missing"), here.get(name, "missing"))
