"""The gradient noise scale, from the slices that every step has anyway.

With g_i the mean gradient of slice i over b_i samples and g their mean over all B samples,
    E|g_i|² = |G|² + trΣ/b_i        E|g|² = |G|² + trΣ/B,
two equations for the two unknowns (McCandlish et al., arXiv 1812.06162, appendix A.1), on one worker as on many. The
inputs are one number a slice and one for the mean, taken in the order of the slices: the estimate is the same on any
roster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

LIMIT = 100.0
"""The noise scale is at most this many times the batch that it was measured with: beyond that a gradient cannot be told from none,
and its estimate may come out as zero or below."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is measured: all slices of the first steps, then two slices of every k-th. A function of the step, so alike everywhere.

    Two slices are enough: what is uncertain is the norm of the mean, not that of a slice. They lie half a batch apart, so that on
    two workers each has one, and move on from time to time.
    """

    every: int = 16
    first: int = 50

    def includes(self, step: int) -> bool:
        return step < self.first or step % self.every == 0

    def slices(self, step: int, slices: int) -> frozenset[int]:
        """The slices that are measured in an included step."""
        if step < self.first or slices <= 2:
            return frozenset(range(slices))
        half = slices // 2
        place = step // self.every % half
        return frozenset((place, place + half))


def moments(norms: Sequence[float], *, mean: float, sizes: Sequence[int], batch: int | None = None) -> tuple[float, float]:
    """Unbiased (|G|², trΣ) of one step from squared norms of slices, that of the mean over the batch, and the slices' sizes.

    The slices count by their samples, as they do in the mean. Empty ones are left out; where only some slices were measured,
    `batch` has the samples of all.
    """
    pairs = [(norm, size) for norm, size in zip(norms, sizes, strict=True) if size > 0]
    measured = sum(size for _, size in pairs)
    batch = batch or measured
    if not pairs or len(pairs) * batch <= measured:
        raise ValueError(f"{len(pairs)} slices of {batch} samples: the noise scale needs slices smaller than the batch")
    single = sum(norm * size for norm, size in pairs) / measured
    small, large = len(pairs) / measured, 1.0 / batch
    return (single * -large + mean * small) / (small - large), (single - mean) / (small - large)


class NoiseState(TypedDict):
    """A noise scale as it is shared and saved."""

    weight: float
    signal: list[float]
    noise: list[float]
    batch: float
    count: int
    ignored: int


class NoiseScale:
    """Moving averages of |G|² and trΣ, a pair for each parameter group. Plain floats, so that it can be shared and
    saved."""

    def __init__(self, groups: int, *, halflife: float = 30.0) -> None:
        self._keep = 0.5 ** (1.0 / halflife)
        self._weight = 0.0
        self._signal = [0.0] * groups
        self._noise = [0.0] * groups
        self._batch = 0.0
        self.count = 0
        """Steps measured."""
        self.ignored = 0
        """Steps with a NaN or an infinity."""

    def observe(
        self, norms: Sequence[Sequence[float]], *, mean: Sequence[float], sizes: Sequence[int], batch: int | None = None
    ) -> bool:
        """One step: `norms[slice][group]` and `mean[group]`. False if it was ignored because not all numbers are finite.

        `batch` is needed where not all slices were measured.
        """
        filled = [row for row, size in zip(norms, sizes, strict=True) if size > 0]
        finite = all(math.isfinite(norm) for row in (*filled, mean) for norm in row)
        if not finite:
            self.ignored += 1
            return False
        batch = batch or sum(sizes)
        if not filled or len(filled) * batch <= sum(sizes):
            return False
        keep = self._keep
        for group in range(len(self._signal)):
            signal, noise = moments([row[group] for row in norms], mean=mean[group], sizes=sizes, batch=batch)
            self._signal[group] = keep * self._signal[group] + (1 - keep) * signal
            self._noise[group] = keep * self._noise[group] + (1 - keep) * noise
        self._batch = keep * self._batch + (1 - keep) * batch
        self._weight = keep * self._weight + (1 - keep)
        self.count += 1
        return True

    def pair(self, group: int | None = None) -> tuple[float, float] | None:
        """(|G|², trΣ) of a group, or of all of them; None before the first measured step. Clipped after averaging."""
        if not self._weight:
            return None
        chosen = slice(None) if group is None else slice(group, group + 1)
        noise = max(0.0, sum(self._noise[chosen]) / self._weight)
        signal = sum(self._signal[chosen]) / self._weight
        return max(signal, noise * self._weight / (LIMIT * self._batch)), noise

    @property
    def scale(self) -> float | None:
        """The noise scale φ = trΣ/|G|² in samples; None before the first measured step."""
        pair = self.pair()
        if pair is None:
            return None
        signal, noise = pair
        return noise / signal if signal > 0 else 0.0

    def state_dict(self) -> NoiseState:
        return {
            "weight": self._weight,
            "signal": list(self._signal),
            "noise": list(self._noise),
            "batch": self._batch,
            "count": self.count,
            "ignored": self.ignored,
        }

    def load_state_dict(self, state: NoiseState) -> None:
        self._weight = float(state["weight"])
        self._signal = [float(value) for value in state["signal"]]
        self._noise = [float(value) for value in state["noise"]]
        self._batch = float(state["batch"])
        self.count = int(state["count"])
        self.ignored = int(state["ignored"])
