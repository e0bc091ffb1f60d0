"""The promises hold for every seed; a seed is replayed exactly; a failure says how to see it again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stretto.simulation.rosters import __main__ as command
from stretto.simulation.rosters.run import simulate
from tests.protocol.mutants import MUTANTS

SEEDS = int(os.environ.get("SEEDS", "300"))
PARTS = 10


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_for_every_seed(part: int) -> None:
    share = -(-SEEDS // PARTS)
    broken = [report for report in map(simulate, range(part * share, min(SEEDS, (part + 1) * share))) if report.failure]
    assert not broken, "\n".join(
        f"seed {report.seed}: {report.failure[:300]}\n  replay: python -m stretto.simulation.rosters --seed {report.seed}"
        for report in broken
    )


def test_a_worker_of_an_earlier_life_that_was_taken_for_a_newcomer_does_not_hold_up_the_job() -> None:
    """Its agent was cut off: the leader hears of its state only after it has put it on the first roster of the next life."""
    report = simulate(12701)
    assert not report.failure, report.failure


def test_the_same_seed_is_the_same_story_in_any_process() -> None:
    source = "from stretto.simulation.rosters.run import simulate; print('\\n'.join(simulate(12).log))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", source],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].rstrip("\n") == "\n".join(simulate(12).log)


def test_seeds_differ_and_cover_breaks_rescues_new_lives_and_finished_jobs() -> None:
    reports = [simulate(seed) for seed in range(40)]
    assert {report.mode for report in reports} == {"orderly", "host", "hosts", "islands"}
    assert sum(report.breaks for report in reports) > 20
    assert sum(report.lives > 1 for report in reports) > 3
    assert sum(report.rosters for report in reports) > 100
    assert all("finished" in report.log[-1] or any("outcome" in line for line in report.log) for report in reports)


def test_a_failure_prints_its_seed_and_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "a tick is counted twice"]
    mutant.apply(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["rosters", "--seeds", "12"])
    assert command.main() == 1
    printed = capsys.readouterr().out
    assert "replay: python -m stretto.simulation.rosters --seed " in printed
    assert printed.splitlines()[-1].startswith("12 seeds, ")
    assert ", 0 broken" not in printed.splitlines()[-1]


def test_the_closing_line_counts_seeds_events_and_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rosters", "--seeds", "2", "--from", "3"])
    assert command.main() == 0
    assert capsys.readouterr().out.startswith("2 seeds, ")
