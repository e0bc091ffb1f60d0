"""Reading a journal while it is written: whole lines only, from where one stopped, a bounded amount at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_BYTES = 512 * 1024
MOST_LINE = 256 * 1024
ILLEGIBLE = re.compile("[\x00\ud800-\udfff]")
"""Letters that JSON can spell, and no database, stream or terminal takes: NUL, and halves of surrogate pairs."""


@dataclass(slots=True)
class Tail:
    path: Path
    offset: int = 0

    def read(self) -> list[Mapping[str, Any]]:
        """The whole lines that have come since. A line that is not JSON is skipped, one that is too long as well."""
        try:
            size = self.path.stat().st_size
            if size <= self.offset:
                return []
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(MOST_BYTES)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) >= MOST_LINE:
            end = len(data)
        self.offset += end
        lines = [_parse(line) for line in data[:end].splitlines()]
        return [line for line in lines if line is not None]


def _parse(line: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line, parse_constant=_no_number)
        if b"\\u" in line or b"\xed" in line:
            value = _legible(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("kind"), str) else None


def _no_number(_: str) -> None:
    """NaN and infinities are Python's own additions to JSON."""


def _legible(value: Any) -> Any:
    if isinstance(value, str):
        return ILLEGIBLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_legible(key): _legible(one) for key, one in value.items()}
    return [_legible(one) for one in value] if isinstance(value, list) else value
