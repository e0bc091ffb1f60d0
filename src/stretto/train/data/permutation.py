"""A random order of n samples that needs no memory: a Feistel network on the next power of four, walked until it is below n.

The sample at a place is a function of (seed, epoch, n, place), so the loader's state is a pair of numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stretto.train.rng import mix

ROUNDS = 6


class Permutation:
    """A bijection of range(n)."""

    def __init__(self, n: int, *, seed: int, epoch: int) -> None:
        self.n = n
        self._half = max(1, ((max(n - 1, 1)).bit_length() + 1) // 2)
        self._mask = np.uint64((1 << self._half) - 1)
        self._keys = [np.uint64(mix(seed, epoch, n, k)) for k in range(ROUNDS)]

    def __call__(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The samples at these places."""
        values = self._network(places.astype(np.uint64))
        outside = values >= self.n
        while outside.any():
            values[outside] = self._network(values[outside])
            outside = values >= self.n
        return values.astype(np.int64)

    def _network(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        half = np.uint64(self._half)
        left, right = values >> half, values & self._mask
        with np.errstate(over="ignore"):
            for key in self._keys:
                mixed = (right ^ key) * np.uint64(0xBF58476D1CE4E5B9)
                mixed ^= mixed >> np.uint64(29)
                mixed *= np.uint64(0x94D049BB133111EB)
                mixed ^= mixed >> np.uint64(32)
                left, right = right, left ^ (mixed & self._mask)
        return (left << half) | right
