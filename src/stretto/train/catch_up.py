"""Between the moment a worker is given the job's state and its first own step.

A newcomer, and every worker after a resume, runs the script from its top. The code that it passes on the way to the place where the
job trains has run before, on the others or before the resume: it must not change what this worker was given. So the state is kept
aside (small tensors as copies, large ones by their version and a sample of their elements) and put back at the first step. Loops
that are over are skipped, evaluations are not repeated, and `job.chief` is False meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from stretto.train.reduce.checksum import checksum

SMALL_BYTES = 1 << 16
"""Tensors up to this size are copied."""
SAMPLES = 1 << 10
"""Elements of a large tensor that are looked at, beside its version: `.data` does not count versions."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor as it was given."""

    tensor: torch.Tensor
    copy: torch.Tensor | None
    version: int
    sample: int

    @staticmethod
    def of(tensor: torch.Tensor) -> Kept:
        if tensor.nbytes <= SMALL_BYTES:
            return Kept(tensor, tensor.detach().clone(), 0, 0)
        return Kept(tensor, None, tensor._version, _sample(tensor))

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
        flatten: Callable[[], tuple[Any, list[torch.Tensor]]],
        *,
        loader: int,
        variables: Mapping[str, Any],
        attributes: Mapping[str, Any],
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
        self._kept = [Kept.of(tensor) for tensor in tensors]

    def finish(self, load: Callable[[Any, list[torch.Tensor]], None]) -> bool:
        """Puts the state back. False if large tensors were changed, so that it has to come once more."""
        if not all(kept.intact for kept in self._kept):
            return False
        skeleton, tensors = self._flatten()
        changed = skeleton != self._skeleton or len(tensors) != len(self._kept)
        if changed or not all(kept.same(now) for kept, now in zip(self._kept, tensors, strict=True)):
            load(self._skeleton, [kept.tensor if kept.copy is None else kept.copy for kept in self._kept])
        return True


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit: NaN equals itself."""
    return checksum(tensor) == checksum(other) and torch.equal(
        tensor.nan_to_num() if tensor.is_floating_point() else tensor, other.nan_to_num() if other.is_floating_point() else other
    )


def _sample(tensor: torch.Tensor) -> int:
    flat = tensor.detach().view(-1) if tensor.is_contiguous() else tensor.detach()
    return checksum(flat[:: max(1, tensor.numel() // SAMPLES)] if tensor.is_contiguous() else flat)
