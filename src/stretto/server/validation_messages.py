"""What pydantic finds wrong, in the words of a job file. Users see none of pydantic's own messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stretto.core.text import quantity
from stretto.server.models import JobId, TokenId
from stretto.server.spec import EnvName, Name

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PATTERNS = {
    str(Name.__metadata__[0].pattern): "small letters, digits and hyphens inside, at most 48",  # type: ignore[attr-defined]
    str(EnvName.__metadata__[0].pattern): "letters, digits and underscores, no digit first, at most 128",  # type: ignore[attr-defined]
    str(JobId.__metadata__[0].pattern): "is not the id of a job: see `stretto ps`",  # type: ignore[attr-defined]
    str(TokenId.__metadata__[0].pattern): "is not the id of a token: see `stretto tokens list`",  # type: ignore[attr-defined]
}
MAPPING = "should be a mapping: `key: value` lines"
KINDS = {
    "int": "should be a whole number",
    "float": "should be a number",
    "finite": "should be a finite number",
    "bool": "should be true or false",
    "string_type": "should be a text",
    "list": "should be a list",
    "dict": MAPPING,
    "model": MAPPING,
    "missing": "is missing",
    "extra": "unknown key",
    "json": "is not JSON",
    "none": "should be null",
}
"""By the beginning of pydantic's kind of mistake."""
BOUNDS = {
    "greater_than_equal": ("ge", "should be at least {}"),
    "less_than_equal": ("le", "should be at most {}"),
    "greater_than": ("gt", "should be more than {}"),
    "less_than": ("lt", "should be less than {}"),
    "literal_error": ("expected", "should be {}"),
    "enum": ("expected", "should be {}"),
    "string_too_long": ("max_length", "is too long: at most {} characters"),
    "string_too_short": ("min_length", "is too short: at least {} characters"),
}
RUN = "should be an argument list such as [python, train.py], or a text"
MOST_TEXT = 500


def words(error: ErrorDetails) -> str:
    """The message for one mistake. It never contains the input, which may be a secret."""
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "value_error":
        return str(error.get("msg", "is not valid")).removeprefix("Value error, ")[:MOST_TEXT]
    if kind in ("list_type", "string_type") and "run" in error["loc"] and not isinstance(error["loc"][-1], int):
        return RUN
    if kind in BOUNDS:
        name, text = BOUNDS[kind]
        return text.format(context.get(name, "?"))
    if kind == "too_long":
        return f"has {quantity(context.get('actual_length') or 0, 'entry', many='entries')}, at most {context.get('max_length')}"
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(str(context.get("pattern")), "is not written as it should be")
    return next((text for begin, text in KINDS.items() if kind.startswith(begin)), "is not valid")


def place(loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """Where the mistake is, without the names of the types that were tried there, and of the part of the request."""
    loc = loc[1:] if len(loc) > 1 and loc[0] in ("path", "query", "header") else loc
    return tuple(part for part in loc if isinstance(part, int) or not ("[" in part or part in ("str", "list", "constrained-str")))
