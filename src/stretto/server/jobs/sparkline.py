"""A loss curve in a few numbers: the whole of it, however long the job trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

MOST = 32


@dataclass(slots=True)
class Spark:
    """Fewer than `MOST` means of `stride` losses each, oldest first; then neighbours are joined and the stride doubles.

    The whole curve and not its end: where the last losses only go up and down, their range says nothing of what it has learned.
    """

    means: list[float] = field(default_factory=list[float])
    stride: int = 1
    open: float = 0.0
    """The sum of the losses that have not made a mean yet."""
    count: int = 0
    """How many they are: less than `stride`."""

    def add(self, loss: float) -> None:
        self.open += loss
        self.count += 1
        if self.count < self.stride:
            return
        self.means.append(_short(self.open / self.count))
        self.open, self.count = 0.0, 0
        if len(self.means) >= MOST:
            pairs = zip(self.means[::2], self.means[1::2], strict=True)
            self.means = [_short((one + other) / 2) for one, other in pairs]
            self.stride *= 2

    def line(self) -> list[float]:
        """For drawing: with what has come since the last mean."""
        return [*self.means, _short(self.open / self.count)] if self.count else list(self.means)

    def steps_ago(self) -> list[int]:
        """How many losses ago each mean was complete."""
        last = len(self.means) - 1
        return [self.count + (last - place) * self.stride for place in range(len(self.means))]

    def document(self) -> dict[str, object]:
        return {"means": self.means, "stride": self.stride, "open": self.open, "count": self.count}

    @staticmethod
    def read(document: object) -> Spark:
        if isinstance(document, dict):
            return Spark(**cast("dict[str, Any]", document))
        earlier = cast("list[float] | None", document) or []  # as 0.1.0 kept it: the last losses
        return Spark(earlier[-MOST + 1 :])


def _short(value: float) -> float:
    """To six digits: it is drawn as wide as a word, and sent in every line."""
    return float(f"{value:.6g}")
