"""Journal lines and messages: what is written is read back, what is new passes, what is wrong is named."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.errors import SchemaError
from stretto.core.journal import JOURNAL, Commit, JournalEvent, Parser, Resume, Start, describe
from stretto.core.messages import TO_AGENT, TO_WORKER, HelloMessage, RosterMessage
from stretto.core.roster import Member, Roster
from stretto.core.schema import VERSION, Json, Schema, Unknown
from stretto.core.slices import Span

COMPAT = Path(__file__).parent.parent / "compat" / "files"
SCHEMAS: dict[str, Schema[Any]] = {"journal": JOURNAL, "to agent": TO_AGENT, "to worker": TO_WORKER}
EVERY_KIND = [(name, kind) for name, schema in SCHEMAS.items() for kind in schema.kinds]

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    type(None): st.none(),
}
JSON = st.recursive(
    st.one_of(*PLAIN.values()),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PLAIN[str], inner, max_size=2),
    max_leaves=4,
)
ROSTERS = st.builds(
    lambda number, names: Roster(number, tuple(Member(name, "a", ("h", 1), Span(0, 1)) for name in names)),
    st.integers(1, 9),
    st.lists(st.text(max_size=4), max_size=3),
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Everything that a field of this type may hold."""
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is Roster:
        return ROSTERS
    if is_dataclass(hint):
        return instances(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return JSON if set(arguments) >= {int, str, bool} else st.one_of(*map(values, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    assert issubclass(origin, Mapping), hint
    return st.dictionaries(PLAIN[str], values(arguments[1]), max_size=3)


def instances(cls: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{one.name: values(hints[one.name]) for one in fields(cls)})


def commit(**fields: object) -> dict[str, Json]:
    given: dict[str, Any] = {"epoch": 0, "loader": 0, "first": 0, "count": 4, "batch": 4, "roster": 1, "workers": 1}
    return {"kind": "commit", "t": 1.0, "step": 3, **given, **fields}


@pytest.mark.parametrize(("name", "kind"), EVERY_KIND)
@given(data=st.data())
def test_every_kind_comes_back_as_it_was(name: str, kind: str, data: st.DataObject) -> None:
    schema = SCHEMAS[name]
    value = data.draw(instances(schema.kinds[kind]))
    line = schema.encode(value)
    assert line.count(b"\n") == 1
    assert json.loads(line)["kind"] == kind
    assert schema.decode(line) == value


@pytest.mark.parametrize("path", sorted(COMPAT.rglob("journal.jsonl")), ids=lambda path: str(path.relative_to(COMPAT)))
def test_lines_of_earlier_versions_are_read_and_written_as_they_were(path: Path) -> None:
    lines = path.read_bytes().splitlines()
    assert lines
    for line in lines:
        before = json.loads(line)
        value = JOURNAL.decode(line)
        assert not isinstance(value, Unknown), line
        after = json.loads(JOURNAL.encode(value))
        assert {key: after.get(key) for key in before} == before
        defaults = {one.name: one.default for one in fields(value) if one.default is not MISSING}
        assert {key: defaults[key] for key in after.keys() - before.keys()} == {
            key: after[key] for key in after.keys() - before.keys()
        }


def test_an_unknown_key_is_ignored() -> None:
    assert JOURNAL.from_dict(commit(colour="blue")) == JOURNAL.from_dict(commit())


def test_an_unknown_kind_is_passed_through_and_counted() -> None:
    line = b'{"kind":"novelty","t":2.5,"something":[1,{"a":null}]}\n'
    parser = Parser()
    (record,) = parser.feed(line)
    assert isinstance(record, Unknown)
    assert (record.kind, record.t) == ("novelty", 2.5)
    assert JOURNAL.encode(record) == line
    assert (parser.unknown, parser.skipped) == (1, 0)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (commit(step="three"), "'commit' has step='three'"),
        (commit(step=True), "'commit' has step=True"),
        (commit(step=3.0), "'commit' has step=3.0"),
        (commit(metrics={"loss": "low"}), "'commit' has metrics={'loss': 'low'}"),
        (commit(order=None), "'commit' has order=None"),
        ({"kind": "event"}, "'event' has no what"),
        ({"kind": "switch", "number": 1, "step": 0, "workers": 1, "joined": "w1"}, "'switch' has joined='w1'"),
        ({"kind": "roster", "number": 1, "members": [{"worker": "w0", "agent": "a", "slices": [0]}]}, "'roster' has members=[{"),
        ({"t": 1.0}, "has no kind"),
    ],
)
def test_a_wrong_value_is_named_with_its_kind_and_key(document: dict[str, Json], named: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(named)):
        JOURNAL.from_dict(document)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_a_value_or_a_schema_error(line: bytes) -> None:
    for schema in SCHEMAS.values():
        try:
            schema.decode(line)
        except SchemaError:
            pass


def test_json_that_is_nested_too_deep_is_a_schema_error() -> None:
    with pytest.raises(SchemaError, match="no JSON"):
        JOURNAL.decode(b"[" * 100_000)


def test_what_is_not_measured_is_not_written() -> None:
    value = JOURNAL.from_dict(commit())
    assert "slice_s" not in JOURNAL.to_dict(value)
    assert "slice_s" in JOURNAL.to_dict(JOURNAL.from_dict(commit(slice_s={"w0": 0.1})))


def test_a_first_line_and_a_first_message_say_the_version() -> None:
    assert JOURNAL.to_dict(Start("train.py"))["schema"] == VERSION
    assert TO_AGENT.to_dict(HelloMessage(("h", 1)))["schema"] == VERSION


def test_a_resume_line_names_the_last_step_that_is_kept() -> None:
    line = Resume.after(8, life=2, path="somewhere")
    assert (line.step, line.finished) == (7, 8)


def test_a_roster_travels_whole() -> None:
    roster = Roster(2, (Member("w0", "a", ("h", 1), Span(0, 4)),), base=1, left=("w1",))
    assert TO_WORKER.decode(TO_WORKER.encode(RosterMessage(roster))) == RosterMessage(roster)
    with pytest.raises(SchemaError, match="'roster' has roster="):
        TO_WORKER.from_dict({"kind": "roster", "roster": {"number": 1}})


def test_every_key_of_the_journal_is_described() -> None:
    for kind in describe():
        assert kind.text, kind.kind
        assert [key.name for key in kind.keys if not key.text] == [], kind.kind
    (event,) = [kind for kind in describe() if kind.kind == "event"]
    assert [(key.name, key.type, key.required) for key in event.keys] == [
        ("t", "float", False),
        ("what", "str", True),
        ("text", "str", False),
        ("worker", "str | None", False),
        ("agent", "str | None", False),
    ]


def test_a_type_that_json_has_no_place_for_is_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        when: complex

    with pytest.raises(TypeError, match="complex"):
        Schema({"odd": Odd}).encode(Odd(1j))


def test_a_codec_that_takes_any_type_would_be_noticed() -> None:
    """The control: the value that strict reading refuses is one that the class itself would take."""
    assert JournalEvent(what=3).what == 3  # pyright: ignore[reportArgumentType]
    assert isinstance(JOURNAL.from_dict(commit()), Commit)
    with pytest.raises(SchemaError):
        JOURNAL.from_dict({"kind": "event", "what": 3})
