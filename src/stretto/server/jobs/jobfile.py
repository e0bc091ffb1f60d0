"""Job files: YAML to a spec, with errors that name line, key and fix."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError

from stretto.core.errors import UsageError
from stretto.server.jobs.command import refusal
from stretto.server.spec import JobSpec
from stretto.server.validation_messages import place, words

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MOST_BYTES = 1 << 20
MOST_DEEP = 32
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
WORKERS = frozenset(
    {
        "workers",
        "num_workers",
        "n_workers",
        "worker",
        "replicas",
        "world_size",
        "nproc",
        "nproc_per_node",
        "num_nodes",
        "nnodes",
        "gpus",
        "num_gpus",
    }
)
OTHERS = {
    "command": "run",
    "cmd": "run",
    "script": "run",
    "entrypoint": "run",
    "args": "run",
    "env": "envs",
    "environment": "envs",
    "cwd": "workdir",
    "dir": "workdir",
    "working_dir": "workdir",
    "folder": "workdir",
    "shell": "plain",
}
At = tuple[str | int, ...]
"""The keys that lead to a place in a file."""
Lines = dict[At, int]


class YamlLoader(Protocol):
    """What is used of `yaml.SafeLoader`, whose stubs have no types."""

    def check_event(self) -> bool: ...

    def get_event(self) -> yaml.Event: ...

    def get_single_node(self) -> yaml.Node | None: ...

    def construct_object(self, node: yaml.Node, *, deep: bool) -> object: ...

    def dispose(self) -> None: ...


@contextlib.contextmanager
def _loader(text: bytes | str) -> Generator[YamlLoader]:
    loader = cast("YamlLoader", yaml.SafeLoader(text))
    try:
        yield loader
    finally:
        loader.dispose()


def read_job_file(path: Path) -> JobSpec:
    """The job that a file describes. `UsageError` names every mistake with its line."""
    try:
        text = path.read_bytes()[: MOST_BYTES + 1]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > MOST_BYTES:
        raise UsageError(f"{path} is larger than {MOST_BYTES} bytes: is it a job file?")
    spec = parse_job(text, name=str(path), now=time.time())
    if spec.workdir is not None:
        folder = (path.parent / Path(spec.workdir).expanduser()).resolve()
        spec = spec.model_copy(update={"workdir": str(folder)})
    return spec


def parse_job(text: bytes | str, *, name: str, now: float) -> JobSpec:
    lines: Lines = {}
    document = _load(text, name, lines)
    if not isinstance(document, dict):
        raise UsageError(f"{name}:1: a job file is a list of `key: value` lines, this is {_kind(document)}")
    value = cast("dict[str, object]", document)
    unknown = _unknown(value, JobSpec, ())
    mistakes = [(lines.get((*at, key), 1), f"{_dotted((*at, key))}: unknown key{hint}") for at, key, hint in unknown]
    _deadline(value, lines, mistakes, now)
    try:
        spec = JobSpec.model_validate(value)
        if (refused := refusal(spec)) is not None:
            mistakes.append((lines.get(("run",), 1), f"run: {refused}"))
        if not mistakes:
            return spec
    except ValidationError as error:
        spoilt = {at for at, _, _ in unknown}
        mistakes += [_mistake(details, lines) for details in error.errors() if not _follows(details, spoilt)]
    mistakes.sort()
    raise UsageError("\n".join(f"{name}:{line}: {text}" for line, text in dict.fromkeys(mistakes)))


def _load(text: bytes | str, name: str, lines: Lines) -> object:
    try:
        _check_shape(text, name)
        with _loader(text) as loader:
            node = loader.get_single_node()
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = str(getattr(error, "problem", None) or "it cannot be read")
        fix = ": indent with spaces, not with tabs" if "'\\t'" in problem else ""
        raise UsageError(f"{name}:{line}: this is not YAML: {problem}{fix}") from None
    return _plain(node, (), lines, name) if node is not None else None


def _check_shape(text: bytes | str, name: str) -> None:
    """No aliases, and nothing deep: the time to read a file grows with the square of its depth."""
    depth = 0
    with _loader(text) as loader:
        while loader.check_event():
            event = loader.get_event()
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise UsageError(f"{name}: anchors and aliases (&a, *a) are not used in job files: write the value out")
            if depth > MOST_DEEP:
                line = cast("yaml.Mark", event.start_mark).line + 1
                raise UsageError(f"{name}:{line}: more than {MOST_DEEP} brackets or indents inside each other: is it a job file?")


def _plain(node: yaml.Node, at: At, lines: Lines, name: str) -> object:
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in mapping:
                raise UsageError(f"{name}:{key_node.start_mark.line + 1}: {_dotted((*at, key))}: is there twice; remove one")
            lines[(*at, key)] = key_node.start_mark.line + 1
            mapping[key] = _plain(value_node, (*at, key), lines, name)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*at, place), lines, name) for place, item in enumerate(node.value)]
    return _scalar(node, at)


def _scalar(node: yaml.Node, at: At) -> object:
    # Arguments and environment are texts: `0.10` must stay `0.10`, and `yes` must not become true.
    if at and at[0] in ("run", "envs") and node.tag != "tag:yaml.org,2002:null":
        return node.value
    try:
        with _loader("") as loader:
            return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError, OverflowError):
        return node.value


def _unknown(value: dict[str, object], model: type[BaseModel], at: At) -> list[tuple[At, str, str]]:
    """Keys that do not exist, with what was probably meant. They are taken out: the rest may have mistakes of its own."""
    unknown: list[tuple[At, str, str]] = []
    for key, inner in list(value.items()):
        field = model.model_fields.get(key)
        if field is None:
            unknown.append((at, key, _meant(key, inner, at) or (_elsewhere(key) if not at else "") or _close(key, model)))
            del value[key]
        elif isinstance(inner, dict) and (nested := _model(field.annotation)) is not None:
            unknown += _unknown(cast("dict[str, object]", inner), nested, (*at, key))
    return unknown


def _meant(key: str, value: object, at: At) -> str:
    """For words of other schedulers and of our own command line: what a job file says instead."""
    word = key.lower().replace("-", "_")
    if word in WORKERS and at in ((), ("elastic",)):
        count = value if isinstance(value, int) and not isinstance(value, bool) else 4
        inside = f"min: {count}, max: {count}" if value == count else "min: 1, max: 4"
        return f"; the number of workers is `elastic: {{{inside}}}`: the fewest and the most"
    return f"; did you mean '{OTHERS[word]}'?" if not at and word in OTHERS else ""


def _close(key: str, model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(key, list(model.model_fields), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; known here: {', '.join(model.model_fields)}"


def _follows(error: ErrorDetails, spoilt: set[At]) -> bool:
    """Whether a mistake may only be there because a misspelt key beside it was taken out."""
    at = tuple(error["loc"])
    return (error["type"] == "missing" and at[:-1] in spoilt) or (error["type"] == "value_error" and at in spoilt)


def _elsewhere(key: str) -> str:
    for name, field in JobSpec.model_fields.items():
        nested = _model(field.annotation)
        if nested is not None and key in nested.model_fields:
            return f"; it belongs under '{name}:'"
    return ""


def _model(annotation: Any) -> type[BaseModel] | None:
    for cls in (annotation, *get_args(annotation)):
        if isinstance(cls, type) and issubclass(cls, BaseModel):
            return cls
    return None


def _deadline(value: dict[str, object], lines: Lines, mistakes: list[tuple[int, str]], now: float) -> None:
    if "deadline" in value and value["deadline"] is not None:
        try:
            value["deadline"] = deadline(value["deadline"], now=now)
        except ValueError as error:
            mistakes.append((lines.get(("deadline",), 1), f"deadline: {error}"))
            del value["deadline"]


def deadline(value: object, *, now: float) -> float:
    """Unix seconds from `2h`, a time, or a number of unix seconds."""
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = str(value).strip()
    short = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text)
    if short:
        return now + float(short[1]) * UNITS[short[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ValueError(f"{text!r} is neither a time nor a span: write 2h, 30m or 2026-12-24T18:00:00Z") from None


def _mistake(error: ErrorDetails, lines: Lines) -> tuple[int, str]:
    at = place(error["loc"])
    while at and at not in lines:
        at = at[:-1]
    if error["type"] == "missing":
        key = str(error["loc"][-1])
        return lines.get(at, 1), f"{_dotted(tuple(error['loc']))}: is missing; add `{key}: …`"
    shown = error.get("input")
    given = (
        f" (it is {shown!r})"
        if isinstance(shown, str | int | float | bool) and len(repr(shown)) < 80 and at[:1] != ("envs",)
        else ""
    )
    return lines.get(at, 1), f"{_dotted(at)}: {words(error)}{given}"


def _dotted(at: At) -> str:
    return ".".join(str(part) for part in at) or "the file"


def _kind(value: object) -> str:
    return "empty" if value is None else "a list" if isinstance(value, list) else "one value"
