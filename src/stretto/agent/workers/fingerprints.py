"""How a worker differs from the others of its job. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.core.source import CODE_OF

MISSING = "missing"
SHOWN = 5


def differences(values: Mapping[str, object], others: Mapping[str, object], *, worker: str, of: str) -> list[str]:
    """`torch.get_num_threads() is 2 on w1 and 1 on w0`, for everything that differs."""
    return [
        f"{name} is {values.get(name, MISSING)} on {worker} and {others.get(name, MISSING)} on {of}"
        for name in dict.fromkeys((*others, *values))
        if values.get(name) != others.get(name)
    ]


def listed(differing: list[str]) -> str:
    """The first few of them."""
    rest = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return "; ".join(differing[:SHOWN]) + rest


def remedy(differing: list[str]) -> str:
    """How to fix terms that differ."""
    if any("seed=" in difference for difference in differing):
        return "Give stretto.join a seed that is the same on every worker, such as stretto.join(seed=0)"
    if all(difference.startswith(CODE_OF) for difference in differing):
        return (
            "The file was changed after the job began: whoever joins would train with another script. Put it back as it was, "
            "or start a new run with it"
        )
    if any(difference.startswith("dataset") for difference in differing):
        return (
            "What is drawn before stretto.join is another one in every process: call random_split and the like after it, or "
            "give them a generator with a seed"
        )
    return "Every worker must run the same script with the same arguments and data"
