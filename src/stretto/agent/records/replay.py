"""Repeating a run: its script, its arguments and its batch plan, on any number of workers."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from stretto.agent.options import RunOptions
from stretto.agent.records.run_folder import RunFolder, write_json
from stretto.batching.recorded_batches import plan_of
from stretto.core.errors import UsageError

PLAN = "plan.json"


def again(options: RunOptions, old: RunFolder) -> RunOptions:
    """These options with what decides the old run's bits: its script and arguments where none are given, its threads."""
    asked = old.read(old.request)
    if asked is None:
        raise UsageError(f"run {old.name!r} has no run.json: it is not known what to repeat")
    script, args = options.script, options.args
    if not script:
        script, args = _script(asked), tuple(str(one) for one in asked.get("args", ()))
    return replace(
        options,
        script=script,
        args=args,
        threads=int(asked.get("threads", options.threads)),
        extra={**options.extra, "replay": PLAN},
    )


def plan(old: RunFolder) -> dict[str, Any]:
    """The old run's batch plan, for `plan.json` in the new one's folder. Raises `UsageError` where it has none."""
    try:
        return {"of": old.name, "plan": plan_of(old.records())}
    except UsageError as error:
        raise UsageError(f"run {old.name!r} cannot be replayed: {error}") from None


def write_plan(document: dict[str, Any], new: RunFolder) -> None:
    write_json(new.path / PLAN, document)


def same(old: RunFolder, digest: str | None) -> bool | None:
    """Whether the digests are equal; None where the old run has none to compare with."""
    result: dict[str, Any] = old.read(old.result) or {}
    expected = result.get("digest")
    return None if not expected or not digest else expected == digest


def _script(asked: dict[str, Any]) -> str:
    """The old run's script, wherever we are now."""
    script = str(asked.get("script", ""))
    return script if os.path.isfile(script) else os.path.join(str(asked.get("cwd", "")), script)
