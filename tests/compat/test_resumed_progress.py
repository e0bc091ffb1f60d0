"""The server's progress, from journals that real recorders wrote across resumes."""

from __future__ import annotations

import pytest
from stored_files import VERSIONS, Stored, copied

from stretto.clusters.attempt import JournalTail
from stretto.core.journal import Commit, Record, Resume
from stretto.server.jobs.run_progress import RunProgress

SAMPLES, STEPS = 64 * 12, 4 * 12


def progress(lines: list[Record]) -> tuple[int, int]:
    """Steps and samples that the server counts."""
    counted = RunProgress()
    for line in lines:
        if isinstance(line, Commit):
            counted.commit(line)
        elif isinstance(line, Resume):
            counted.rewind(line)
    return counted.step, counted.samples


@pytest.fixture(scope="module", params=VERSIONS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return copied(request.param, tmp_path_factory.mktemp("files"))


def lines(files: Stored, run: str) -> list[Record]:
    return JournalTail(files.folder / run / "journal.jsonl").read()


def test_steps_that_a_kill_lost_are_counted_once(files: Stored) -> None:
    assert progress(lines(files, "runs/finished")) == (STEPS, SAMPLES)


def test_a_pause_that_lost_no_step_takes_no_samples_back(files: Stored) -> None:
    assert progress(lines(files, f"home/runs/{files.expected['jobs']['resumed']}")) == (STEPS, SAMPLES)


def test_a_resume_line_of_the_present_recorder_is_read_as_it_is_meant(files: Stored, same_bits: None) -> None:
    files.output("resume", "interrupted", "--quiet")
    assert progress(lines(files, "runs/interrupted")) == (STEPS, SAMPLES)


def test_a_run_without_a_resume_has_all_of_its_samples(files: Stored) -> None:
    """A control: it is the resume that loses them."""
    assert progress(lines(files, "runs/pair-h2")) == (16, 256)
