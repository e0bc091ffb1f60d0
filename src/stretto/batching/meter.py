"""The squared norms of one pass: taken from gradients as backward produces them, read together at the exchange.

A *unit* is what one backward is made of: a slice, or a part of one where slices are accumulated from parts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.batching.noise import Norms, squares


class Meter:
    def __init__(self, norms: Norms) -> None:
        self.norms = norms
        self._units: dict[int, list[list[Tensor]]] = {}
        self._open: list[list[Tensor]] = []

    def begin(self) -> None:
        """A pass starts, possibly once more."""
        self._units = {}

    def enter(self, unit: int) -> None:
        self._open = self._units[unit] = [[] for _ in range(self.norms.groups)]

    @torch.no_grad()
    def take(self, gradient: Tensor, parameter: torch.nn.Parameter) -> None:
        """One parameter's gradient of the unit at hand. Launches kernels, waits for none."""
        group = self.norms.group_of(parameter)
        if group >= 0:
            self._open[group] += self.norms.of(parameter, gradient.detach())

    @torch.no_grad()
    def rows(self, scale: Tensor | float) -> dict[int, list[float]]:
        """|g|² by unit and group; the one point where the host reads what the device has computed."""
        if not self._units:
            return {}
        device = next((one.device for groups in self._units.values() for held in groups for one in held), None)
        zero = torch.zeros((), dtype=torch.float64, device=device)
        table = torch.stack([torch.stack([squares(held) if held else zero for held in groups])
                             for groups in self._units.values()])
        return dict(zip(self._units, (table / scale**2).tolist(), strict=True))
