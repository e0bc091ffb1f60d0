"""Repeating a run: its script, its arguments and its batch plan, on any number of workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from stretto.agent.options import RunOptions
from stretto.agent.records.run_folder import RunFolder, write_json
from stretto.batching.recorded_batches import plan_of
from stretto.core.errors import UsageError
from stretto.core.json_types import JsonObject, to_int, to_list

PLAN = "plan.json"


def again(options: RunOptions, old: RunFolder) -> RunOptions:
    """These options with what decides the old run's bits: its script and arguments where none are given, its threads."""
    request = old.read(old.request)
    if request is None:
        raise UsageError(f"run {old.name!r} has no run.json: it is not known what to repeat")
    script, args = options.script, options.args
    if not script:
        script, args = _script(request), tuple(map(str, to_list(request.get("args"))))
    return replace(
        options,
        script=script,
        args=args,
        threads=to_int(request.get("threads"), options.threads),
        extra={**options.extra, "replay": PLAN},
    )


def plan(old: RunFolder) -> dict[str, object]:
    """The old run's batch plan, for `plan.json` in the new one's folder. Raises `UsageError` where it has none."""
    try:
        return {"of": old.name, "plan": plan_of(old.records())}
    except UsageError as error:
        raise UsageError(f"run {old.name!r} cannot be replayed: {error}") from None


def write_plan(document: Mapping[str, object], new: RunFolder) -> None:
    write_json(new.path / PLAN, document)


def same(old: RunFolder, digest: str | None) -> bool | None:
    """Whether the digests are equal; None where the old run has none to compare with."""
    result = old.read(old.result) or {}
    expected = result.get("digest")
    return None if not expected or not digest else expected == digest


def _script(request: JsonObject) -> str:
    """The old run's script, wherever we are now."""
    script = str(request.get("script", ""))
    return script if os.path.isfile(script) else os.path.join(str(request.get("cwd", "")), script)
