"""Types of values that come out of JSON and go into it, and readers that check what they get.

The readers take what is under a key of a document. None, for a missing key, gives the default; a value of another type raises
`ValueError`.
"""

from __future__ import annotations

from typing import cast

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]


def to_int(value: JsonValue, default: int = 0) -> int:
    """A whole number; one that is written as text or with a fraction is converted."""
    if value is None:
        return default
    if isinstance(value, list | dict):
        raise ValueError(f"{value!r} is no number")
    return int(value)


def to_object(value: object) -> JsonObject:
    """A JSON object; empty for None."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no JSON object")
    return cast("JsonObject", value)


def to_list(value: JsonValue) -> list[JsonValue]:
    """A JSON list; empty for None."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return value


def to_address(value: JsonValue) -> tuple[str, int]:
    """A host and a port, from a list of the two."""
    host, port = to_list(value)
    return str(host), to_int(port)
