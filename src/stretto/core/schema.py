"""One encoder and one decoder for tagged JSON objects: journal lines and the messages between workers and agents.

A kind is a frozen dataclass; its fields are the keys. Reading is tolerant of what is new and strict about what is known: unknown
keys are ignored, an unknown kind gives an `Unknown`, and a known key with a value of another type raises `SchemaError` with kind,
key and value. Keys that older versions did not write have a default.

Types of fields: `int`, `float` (takes whole numbers too), `str`, `bool`, unions of these with `None`, `tuple[X, ...]`,
`tuple[X, Y]`, `Mapping[str, X]`, other dataclasses, classes with `to_dict` and `from_dict`, and `Json` for anything.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from stretto.core.errors import SchemaError
from stretto.core.json_types import JsonObject, JsonValue

VERSION = 1
"""Of the journal's lines and of the messages. It rises when the meaning of a kind or key changes, not when one is added."""

Json: TypeAlias = JsonValue
"""The type of a field that may hold anything."""

SHOWN = 200
"""Characters of a wrong value that an error shows."""
PLAIN: Mapping[object, frozenset[type]] = {
    bool: frozenset({bool}),
    int: frozenset({int}),
    float: frozenset({float, int}),
    str: frozenset({str}),
    type(None): frozenset({type(None)}),
}
ANYTHING: frozenset[type] = frozenset({bool, int, float, str, list, dict, type(None)})

T = TypeVar("T")
_Convert: TypeAlias = Callable[[Any], object]
_dumps = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Unknown:
    """An object of a kind that this version does not know. It is encoded as it came."""

    kind: str
    document: Mapping[str, Json]

    @property
    def t(self) -> float:
        """Its time, where it has one: journal lines do."""
        value = self.document.get("t")
        return float(value) if isinstance(value, int | float) else 0.0


def omitted(default: T) -> T:
    """A field that is left out of the JSON while it has its default."""
    return field(default=default, metadata={"omit": True})


class Schema(Generic[T]):
    """A tagged union: the key `kind` says which class an object is of."""

    def __init__(self, kinds: Mapping[str, type[T]]) -> None:
        self.kinds = kinds
        self._names: dict[type, str] = {cls: kind for kind, cls in kinds.items()}

    def encode(self, value: T | Unknown) -> bytes:
        """One line of JSON, with its end."""
        return _dumps(self.to_dict(value)).encode() + b"\n"

    def decode(self, line: bytes) -> T | Unknown:
        """Raises `SchemaError` for what is no JSON object with a kind, or does not fit its kind."""
        return self.from_dict(parse(line))

    def to_dict(self, value: T | Unknown) -> JsonObject:
        if isinstance(value, Unknown):
            return dict(value.document)
        return {"kind": self._names[type(value)], **_encode(value)}

    def from_dict(self, document: Mapping[str, Json]) -> T | Unknown:
        kind = document.get("kind")
        if not isinstance(kind, str):
            raise SchemaError(f"an object has no kind: {_shown(document)}")
        cls = self.kinds.get(kind)
        if cls is None:
            return Unknown(kind, document)
        try:
            return _decode(cls, document)
        except SchemaError as error:
            raise SchemaError(f"{kind!r} {error}") from None

    def describe(self) -> tuple[KindDescription, ...]:
        """All kinds with their keys, for the reference pages."""
        return tuple(
            KindDescription(kind, cls.__name__, own_docstring(cls), tuple(_describe(cls))) for kind, cls in self.kinds.items()
        )


class KeyDescription(NamedTuple):
    """One key of a kind."""

    name: str
    type: str
    required: bool
    default: object
    """What a line without the key means; None for a required key."""
    omitted: bool
    """The key is not written while it has its default."""
    text: str


class KindDescription(NamedTuple):
    """One kind of a schema."""

    kind: str
    name: str
    text: str
    keys: tuple[KeyDescription, ...]


def parse(line: bytes | str) -> JsonObject:
    """A JSON object. Raises `SchemaError` for anything else."""
    try:
        document: object = json.loads(line)
    except (ValueError, RecursionError):
        raise SchemaError(f"this is no JSON: {line[:SHOWN]!r}") from None
    if not isinstance(document, dict):
        raise SchemaError(f"this is no JSON object: {line[:SHOWN]!r}")
    return cast("JsonObject", document)


# ---- the fields of a class, prepared once


class _Key(NamedTuple):
    name: str
    accepted: frozenset[type]
    convert: _Convert | None
    """Checks and converts what is inside; None where the type alone says enough."""
    required: bool


class _Layout(NamedTuple):
    keys: tuple[_Key, ...]
    names: tuple[str, ...]
    values: Callable[[object], tuple[object, ...]]
    """The fields of an instance, in order."""
    converted: tuple[tuple[str, _Convert], ...]
    """Fields that are not JSON as they are."""
    omitted: tuple[tuple[str, object], ...]
    """Fields that are left out, and the value at which they are."""


@cache
def _layout(cls: type) -> _Layout:
    hints = get_type_hints(cls)
    described = fields(cls)
    names = tuple(field_.name for field_ in described)
    readers = [(field_, *_reader(hints[field_.name])) for field_ in described]
    writers = [(name, _writer(hints[name])) for name in names]
    return _Layout(
        keys=tuple(_Key(field_.name, accepted, convert, _required(field_)) for field_, accepted, convert in readers),
        names=names,
        values=_getter(names),
        converted=tuple((name, writer) for name, writer in writers if writer is not None),
        omitted=tuple((field_.name, field_.default) for field_ in described if field_.metadata.get("omit")),
    )


def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    """`attrgetter` gives a bare value for one name and takes no fewer."""
    if len(names) > 1:
        return cast("Callable[[object], tuple[object, ...]]", attrgetter(*names))
    return lambda value: tuple(getattr(value, name) for name in names)


def _required(key: Field[Any]) -> bool:
    return key.default is MISSING and key.default_factory is MISSING


def _encode(value: object) -> dict[str, Any]:
    layout = _layout(type(value))
    document: dict[str, Any] = dict(zip(layout.names, layout.values(value), strict=True))
    for name, convert in layout.converted:
        document[name] = convert(document[name])
    for name, default in layout.omitted:
        if document[name] == default:
            del document[name]
    return document


def _decode(cls: type[T], document: Mapping[str, Json]) -> T:
    values: dict[str, object] = {}
    for name, accepted, convert, required in _layout(cls).keys:
        if name in document:
            value = document[name]
            if type(value) not in accepted:
                raise SchemaError(f"has {name}={_shown(value)}")
            try:
                values[name] = value if convert is None or value is None else convert(value)
            except (SchemaError, KeyError, TypeError, ValueError):
                raise SchemaError(f"has {name}={_shown(value)}") from None
        elif required:
            raise SchemaError(f"has no {name}")
    return cls(**values)


def _reader(hint: Any) -> tuple[frozenset[type], _Convert | None]:
    """The JSON types that a field takes, and how what is inside is checked and converted."""
    if hint in PLAIN:
        return PLAIN[hint], None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union_reader(hint, arguments)
    if origin is tuple:
        return frozenset({list}), _tuple_reader(arguments)
    if origin is not None and issubclass(origin, Mapping):
        accepted, convert = _reader(arguments[1])
        return frozenset({dict}), None if accepted is ANYTHING else lambda value: _each_value(value, accepted, convert)
    if hasattr(hint, "from_dict"):
        return frozenset({dict}), hint.from_dict
    if is_dataclass(hint):
        return frozenset({dict}), lambda value: _decode(cast("type[object]", hint), value)
    raise TypeError(f"{hint} is no type that a schema can have")


def _union_reader(hint: Any, arguments: tuple[Any, ...]) -> tuple[frozenset[type], _Convert | None]:
    if frozenset(arguments) >= {bool, int, float, str}:
        return ANYTHING, None
    readers = [_reader(argument) for argument in arguments]
    converts = [convert for _, convert in readers if convert is not None]
    if len(converts) > 1:
        raise TypeError(f"{hint} has more than one type that is no plain value")
    return frozenset(kind for accepted, _ in readers for kind in accepted), converts[0] if converts else None


def _tuple_reader(arguments: tuple[Any, ...]) -> _Convert:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        accepted, convert = _reader(arguments[0])
        return lambda value: tuple(_check(item, accepted, convert) for item in value)
    readers = [_reader(argument) for argument in arguments]
    return lambda value: tuple(_check(item, *reader) for item, reader in zip(value, readers, strict=True))


def _each_value(value: Mapping[str, object], accepted: frozenset[type], convert: _Convert | None) -> Mapping[str, object]:
    if convert is not None:
        return {key: _check(item, accepted, convert) for key, item in value.items()}
    for item in value.values():
        if type(item) not in accepted:
            raise SchemaError(_shown(item))
    return value


def _check(value: object, accepted: frozenset[type], convert: _Convert | None) -> object:
    if type(value) not in accepted:
        raise SchemaError(_shown(value))
    return value if convert is None or value is None else convert(value)


def _writer(hint: Any) -> _Convert | None:
    """How a value becomes JSON; None where it is as it stands, such as tuples of plain values."""
    if hint in PLAIN:
        return None
    if hasattr(hint, "to_dict"):
        return lambda value: value.to_dict()
    if is_dataclass(hint):
        return _encode
    arguments = [argument for argument in get_args(hint) if argument is not Ellipsis]
    if frozenset(arguments) >= {bool, int, float, str}:
        return None
    writers = [writer for writer in map(_writer, arguments) if writer is not None]
    if not writers:
        return None
    if get_origin(hint) is tuple and len(arguments) == 1:
        return lambda value: [writers[0](item) for item in value]
    raise TypeError(f"{hint} is no type that a schema can write")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


# ---- for the reference pages


def own_docstring(cls: type) -> str:
    """Without the signature that `dataclass` writes where there is none."""
    text = inspect.getdoc(cls) or ""
    return "" if text.startswith(f"{cls.__name__}(") else text


def field_docstrings(cls: type) -> dict[str, str]:
    """The strings under the fields of a class and of its bases, by field."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        (body,) = [node.body for node in ast.parse(textwrap.dedent(inspect.getsource(base))).body if isinstance(node, ast.ClassDef)]
        for before, after in itertools.pairwise(body):
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
                if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                    texts[before.target.id] = inspect.cleandoc(after.value.value)
    return texts


def _describe(cls: type) -> Iterator[KeyDescription]:
    texts = field_docstrings(cls)
    for key in fields(cls):
        default: object = key.default
        if default is MISSING:
            default = key.default_factory() if key.default_factory is not MISSING else None
        yield KeyDescription(
            key.name, str(key.type), _required(key), default, bool(key.metadata.get("omit")), texts.get(key.name, "")
        )
