"""Words for people: numbers with their nouns."""

from __future__ import annotations


def quantity(number: int, noun: str, *, many: str | None = None) -> str:
    """`1 worker`, `4 workers`; `many` is for nouns whose plural is not an added s."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"
