"""Reading a journal while it is written: whole lines only, from where one stopped, a bounded amount at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stretto.core.errors import SchemaError
from stretto.core.journal import JOURNAL, Record
from stretto.core.schema import Json, parse

MOST_BYTES = 512 * 1024
MOST_LINE = 256 * 1024
ILLEGIBLE = re.compile("[\x00\ud800-\udfff]")
"""Letters that JSON can spell, and no database, stream or terminal takes: NUL, and halves of surrogate pairs."""


@dataclass(slots=True)
class Tail:
    path: Path
    offset: int = 0

    def read(self) -> list[Record]:
        """The whole lines that have come since. Skips a line that is too long, is no JSON or does not fit its kind."""
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


def _parse(line: bytes) -> Record | None:
    try:
        document = parse(line)
        if b"\\u" in line or b"\xed" in line:
            document = {key: _legible(value) for key, value in document.items()}
        return JOURNAL.from_dict(document)
    except (SchemaError, RecursionError):
        return None


def _legible(value: Json) -> Json:
    if isinstance(value, str):
        return ILLEGIBLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {ILLEGIBLE.sub("\N{REPLACEMENT CHARACTER}", key): _legible(inner) for key, inner in value.items()}
    return [_legible(inner) for inner in value] if isinstance(value, list) else value
