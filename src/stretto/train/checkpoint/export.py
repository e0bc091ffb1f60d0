"""The weights alone, as one safetensors file that anything can load. No torch here: bytes go from shards to the file."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from stretto.core.errors import Refused, UsageError
from stretto.core.files import replacing
from stretto.core.manifest import Manifest
from stretto.train.checkpoint.catalog import verify
from stretto.train.checkpoint.shard_layout import CODES, framed, header, weights, width
from stretto.train.checkpoint.storage import CheckpointStorage

CHUNK = 8 << 20


def export(storage: CheckpointStorage, manifest: Manifest, out: Path) -> int:
    """Writes the file, whole or not at all; its bytes. The shards are read twice: to check them, and to copy."""
    verify(storage, manifest)
    names = weights(manifest)
    if not names:
        raise UsageError(
            f"the checkpoint of step {manifest.step} has no module in it: only what was given to job.share as a "
            "torch.nn.Module has weights to export"
        )
    document: dict[str, object] = {
        "__metadata__": {
            "format": "pt",
            "stretto.run": manifest.run,
            "stretto.step": str(manifest.step),
            "stretto.version": manifest.identity.version,
        }
    }
    places: dict[int, int] = {}
    end = 0
    for name, index in names:
        tensor = manifest.tensors[index]
        size = tensor.elements * width(tensor)
        document[name] = {"dtype": CODES[tensor.dtype][0], "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        places[index] = end
        end += size
    start = framed(document)
    try:
        with replacing(out, durable=True) as file:
            file.write(start)
            file.truncate(len(start) + end)
            _copy(storage, manifest, places, file, base=len(start))
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror or error}: choose another place") from error
    return len(start) + end


def _copy(storage: CheckpointStorage, manifest: Manifest, places: dict[int, int], file: BinaryIO, *, base: int) -> None:
    for shard in manifest.shards:
        offset = len(header(manifest.tensors, shard.pieces))
        with storage.open(manifest.folder, shard.file) as source:
            for piece in shard.pieces:
                step = width(manifest.tensors[piece.tensor])
                size = (piece.high - piece.low) * step
                if piece.tensor in places:
                    source.seek(offset)
                    file.seek(base + places[piece.tensor] + piece.low * step)
                    left = size
                    while left and (chunk := source.read(min(left, CHUNK))):
                        file.write(chunk)
                        left -= len(chunk)
                    if left:
                        raise Refused(f"{storage.where(manifest.folder, shard.file)} was cut off while it was read")
                offset += size
