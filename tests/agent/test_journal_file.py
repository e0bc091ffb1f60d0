"""The journal: append-only, whole lines, readable after any crash, and a full disk ends no job."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from launching import environment

from stretto.agent.records import journal_writer as journals
from stretto.agent.records.journal_writer import Journal
from stretto.core.journal import Commit, EpochEnd, JournalEvent, Parser, Record, Resume, Switch, lives, parse


def silent(text: str) -> None:
    raise AssertionError(text)


def commit(step: int, roster: int = 1) -> Commit:
    return Commit(step=step, epoch=0, loader=0, first=0, count=4, batch=4, roster=roster, workers=1, metrics={"loss": 0.5})


def test_what_is_written_is_read_back_as_types(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", warn=silent)
    written = [journal.write(JournalEvent("started", "pid 1", worker="w0")), journal.write(commit(4))]
    assert journal.close() is None
    assert parse((tmp_path / "j").read_bytes()) == written
    assert all(line.t > 0 for line in written)


def test_every_cut_of_a_journal_is_readable(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", warn=silent)
    for step in range(3):
        journal.write(commit(step))
    journal.close()
    data = (tmp_path / "j").read_bytes()
    ends = [place for place in range(len(data)) if data[place] == 10]
    for cut in range(len(data)):
        assert len(parse(data[:cut])) == sum(end < cut for end in ends)


def test_a_torn_line_does_not_swallow_the_next_agents_first(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"t":1,"kind":"event","what":"a"}\n{"t":2,"kind":"ev')
    journal = Journal(path, warn=silent)
    journal.write(JournalEvent("b"))
    journal.close()
    parser = Parser()
    found = list(parser.feed(path.read_bytes()))
    assert [one.what for one in found if isinstance(one, JournalEvent)] == ["a", "b"]
    assert parser.skipped == 1
    assert not parser.torn


def test_a_line_that_comes_in_pieces_is_one_line() -> None:
    parser = Parser()
    line = json.dumps({"t": 1, "kind": "event", "what": "x"}).encode() + b"\n"
    found = [one for place in range(len(line)) for one in parser.feed(line[place : place + 1])]
    assert len(found) == 1
    assert not parser.torn


def test_lines_that_lack_a_field_are_counted_not_raised() -> None:
    parser = Parser()
    assert list(parser.feed(b'{"kind":"commit","t":1}\n[1]\nnonsense\n{"kind":"event","t":1,"what":"x"}\n')) != []
    assert parser.skipped == 3


def test_after_a_resume_what_it_replaces_is_gone() -> None:
    switch = Switch(number=1, step=0, workers=1, joined=(), left=(), cause="start", pause_ms=0.0)
    before: list[Record] = [*map(commit, range(4)), EpochEnd(epoch=0, loader=0)]
    kept = lives([*before, Resume(step=1, life=2), commit(2, roster=9), commit(3, roster=9), switch])
    assert [(one.step, one.roster) for one in kept if isinstance(one, Commit)] == [(0, 1), (1, 1), (2, 9), (3, 9)]
    assert sum(isinstance(one, Resume) for one in kept) == 1
    assert sum(isinstance(one, Switch) for one in kept) == 1
    assert len([one for one in kept if type(one).__name__ == "EpochEnd"]) == 0


def test_a_full_disk_warns_once_keeps_lines_and_says_at_the_end_what_is_missing() -> None:
    warnings: list[str] = []
    journal = Journal(Path("/dev/full"), warn=warnings.append)
    for step in range(5):
        journal.write(commit(step))
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    assert "the job goes on" in warnings[0]
    lost = journal.close()
    assert lost is not None
    assert "5 lines" in lost


def test_memory_for_waiting_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "PENDING_BYTES", 1000)
    journal = Journal(Path("/dev/full"), warn=lambda text: None)
    for step in range(100):
        journal.write(commit(step))
    assert journal.lost > 80
    assert "100 lines" in (journal.close() or "")


def test_when_there_is_room_again_nothing_was_lost(tmp_path: Path) -> None:
    """A limit on the file's size cuts a line in the middle, as a disk that fills up does; then it is lifted."""
    program = """
        import resource, signal, sys
        from pathlib import Path
        from stretto.agent.records import journal_writer as journals
        from stretto.core.journal import JournalEvent
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journals.RETRY_S = 0.0
        told = []
        journal = journals.Journal(Path(sys.argv[1]), warn=told.append)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (250, hard))
        for step in range(20):
            journal.write(JournalEvent(f"number {step}"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        journal.write(JournalEvent("number 20"))
        assert journal.close() is None
        assert len(told) == 2, told
    """
    path = tmp_path / "j"
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], env=environment(), check=True, timeout=60)
    found = parse(path.read_bytes())
    assert [one.what for one in found if isinstance(one, JournalEvent)] == [f"number {step}" for step in range(21)]
