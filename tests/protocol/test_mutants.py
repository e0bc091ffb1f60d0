"""Every deliberate mistake in the protocol is caught by the simulator; the protocol itself is not."""

from __future__ import annotations

import pytest

from stretto.simulation.rosters.run import simulate
from tests.protocol.mutants import MUTANTS, Mutant

SEEDS = 400
"""Within so many seeds a mutant has to be caught; most are in the first ten."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_simulator_catches_the_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    assert any(simulate(seed).failure for seed in (mutant.seed, *range(SEEDS))), f"{mutant.name}: not caught by {SEEDS} seeds"


@pytest.mark.parametrize("seed", sorted({mutant.seed for mutant in MUTANTS}))
def test_the_seed_that_shows_a_mutant_shows_nothing_without_it(seed: int) -> None:
    assert not simulate(seed).failure


def test_there_are_enough_mutants_and_no_two_alike() -> None:
    assert len(MUTANTS) >= 20
    assert len({(mutant.where, mutant.old, mutant.new) for mutant in MUTANTS}) == len({one.name for one in MUTANTS}) == len(MUTANTS)
