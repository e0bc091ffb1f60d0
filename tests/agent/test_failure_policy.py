"""Whose fault a death is, and how often it may happen."""

from __future__ import annotations

from dataclasses import replace

from stretto.agent.workers.failure_policy import Crash, FailureHistory
from stretto.agent.workers.replacement import BACKOFF_MOST_S, RestartBudget

CRASH = Crash("w0", 12, "ValueError", "a hole", "Traceback: …")


def test_the_same_exception_at_the_same_place_in_two_workers_fails_the_job() -> None:
    ledger = FailureHistory()
    assert ledger.crashed(CRASH, started=True) is None
    failure = ledger.crashed(replace(CRASH, worker="w1"), started=True)
    assert failure is not None
    assert "workers w0 and w1" in failure.text
    assert "ValueError: a hole" in failure.text
    assert failure.traceback == "Traceback: …"


def test_other_exceptions_other_places_and_the_same_worker_do_not() -> None:
    ledger = FailureHistory()
    for crash in (
        CRASH,
        replace(CRASH, worker="w1", tick=13),
        replace(CRASH, worker="w2", text="another hole"),
        replace(CRASH, worker="w3", type="KeyError"),
        CRASH,
    ):
        assert ledger.crashed(crash, started=True) is None


def test_before_the_first_roster_one_exception_is_enough() -> None:
    failure = FailureHistory().crashed(replace(CRASH, tick=None), started=False)
    assert failure is not None
    assert "at its start" in failure.text


def test_newcomers_that_fail_alike_at_their_start_fail_the_job_only_together() -> None:
    ledger = FailureHistory()
    assert ledger.crashed(replace(CRASH, tick=None), started=True) is None
    assert ledger.crashed(replace(CRASH, tick=None, worker="w5"), started=True) is not None


def test_the_scripts_own_exit_code_is_kept() -> None:
    failure = FailureHistory().crashed(Crash("w0", None, "SystemExit", "3"), started=False)
    assert failure is not None
    assert failure.exit_code == 3


def test_a_slice_that_kills_two_workers_is_poison_and_one_that_kills_the_same_worker_twice_is_not_counted_twice() -> None:
    ledger = FailureHistory()
    place = (5, 0, 3)
    assert ledger.died_in(place, worker="w0", how="") is None
    assert ledger.died_in(place, worker="w0", how="") is None
    assert ledger.died_in((5, 0, 4), worker="w1", how="") is None
    assert ledger.died_in((6, 0, 3), worker="w1", how="") is None
    failure = ledger.died_in(place, worker="w1", how="signal 11")
    assert failure is not None
    assert "slice 3 of step 5" in failure.text
    assert "w0 and w1" in failure.text


def test_the_first_restart_is_at_once_and_the_next_wait_longer_up_to_a_bound() -> None:
    budget = RestartBudget(20)
    delays = [budget.spend(0.0) for _ in range(10)]
    assert delays[:4] == [0.0, 1.0, 2.0, 4.0]
    assert max(delay for delay in delays if delay is not None) == BACKOFF_MOST_S


def test_the_budget_is_used_up_and_comes_back_with_time() -> None:
    budget = RestartBudget(2, window_s=100)
    assert budget.spend(0.0) == 0.0
    assert budget.spend(50.0) == 1.0
    assert budget.spend(60.0) is None
    assert budget.spend(101.0) == 1.0
    assert budget.spend(500.0) == 0.0
    assert RestartBudget(0).spend(0.0) is None
