"""Which order of samples a worker reads: one short id for all that decides it. Pure."""

from __future__ import annotations

import hashlib


def order_id(*, seed: int, loader: int, epoch: int, samples: int, shuffle: bool) -> str:
    """64 bits. Workers of one job have the same in every epoch, or they train on other samples than the journal says."""
    text = f"{seed} {loader} {epoch} {samples} {int(shuffle)}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
