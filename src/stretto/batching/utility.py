"""What finishing a job is worth, as a function of when: the text of `--worth` and its meaning.

decay(100, 2h)      100 now, half of it after every 2 hours
linear(100, 2h)     100 now, falling in a straight line to nothing at 2 hours
deadline(100, 2h)   100 until 2 hours, nothing after
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stretto.core.errors import UsageError

Shape = Literal["decay", "linear", "deadline"]
UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WORTH = re.compile(r"\s*(?P<shape>[a-z]+)\s*\(\s*(?P<value>[^,()]+?)\s*,\s*(?P<span>[^,()]+?)\s*\)\s*")
_SPAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)")


@dataclass(frozen=True, slots=True)
class UtilityCurve:
    """In the currency of the price."""

    shape: Shape
    value: float
    span_s: float

    def at(self, seconds: float) -> float:
        """What it is worth to finish `seconds` after the start."""
        seconds = max(0.0, seconds)
        match self.shape:
            case "decay":
                return self.value * 0.5 ** (seconds / self.span_s)
            case "linear":
                return self.value * max(0.0, 1.0 - seconds / self.span_s)
            case "deadline":
                return self.value if seconds <= self.span_s else 0.0


def parse_worth(text: str) -> UtilityCurve:
    """The value of `--worth`. Raises `UsageError`."""
    fields = _WORTH.fullmatch(text)
    if fields is None or fields["shape"] not in ("decay", "linear", "deadline"):
        raise UsageError(
            f"--worth {text!r} is not understood: write decay(VALUE, TIME), linear(VALUE, TIME) or "
            "deadline(VALUE, TIME), for example 'decay(100, 2h)'"
        )
    try:
        value = float(fields["value"])
    except ValueError:
        raise UsageError(f"--worth {text!r}: the value {fields['value']!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise UsageError(f"--worth {text!r}: the value {fields['value']} must be above 0 and finite")
    return UtilityCurve(fields["shape"], value, parse_span(fields["span"], flag="--worth"))  # pyright: ignore[reportArgumentType]


def parse_span(text: str, *, flag: str) -> float:
    """'90s', '5m', '2h' or '1.5d' in seconds. Raises `UsageError`."""
    fields = _SPAN.fullmatch(text.strip())
    if fields is None or fields["unit"] not in UNITS_S:
        raise UsageError(f"{flag}: {text!r} is not a time: write a number and one of {', '.join(UNITS_S)}, for example 2h")
    seconds = float(fields["number"]) * UNITS_S[fields["unit"]]
    if seconds <= 0:
        raise UsageError(f"{flag}: {text!r} must be longer than nothing")
    return seconds
