"""The words for the code of a script in what workers compare. Pure."""

from __future__ import annotations

from collections.abc import Mapping

CODE_OF = "the code of "
"""A term that begins so is compared where both workers have it: the chief may import what others do not."""


def comparable(terms: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Without the code that only one of both has."""
    return {name: value for name, value in terms.items() if not name.startswith(CODE_OF) or name in others}
