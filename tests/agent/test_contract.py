"""Workers that would train on other samples, or with other bits, are refused before they train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from launching import Launched, script
from torch.utils.data import Subset, TensorDataset, random_split

from stretto.agent.records.recorder import Recorder, Silent
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.workers.failure_policy import differences, listed, remedy
from stretto.core.audit import audit
from stretto.core.journal import LoaderLine, Orders
from stretto.train.data.dataset_checks import identity

Launch = Callable[..., Launched]
SEEDED = script(epochs=8, pause_s=0.02).replace("seed=3", "seed=1000 + int(WORKER[1:]) if WORKER != 'alone' else 0")


def test_differences_have_the_name_and_both_values_and_both_workers() -> None:
    found = differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}, worker="w1", of="w0")
    assert found == ["b is 2 on w1 and 3 on w0", "c is missing on w1 and 4 on w0"]
    assert listed([str(n) for n in range(7)]) == "0; 1; 2; 3; 4; and 2 more"
    assert "stretto.join(seed=0)" in remedy(["stretto.join(seed=…) is 1 on w1 and 2 on w0"])


def test_which_samples_a_dataset_has_is_compared() -> None:
    base = TensorDataset(torch.arange(200))
    one, other = random_split(base, [100, 100])
    assert identity(one) == identity(Subset(base, list(one.indices))) != identity(other)
    assert identity(one) != identity(Subset(TensorDataset(torch.arange(200) + 1), one.indices))
    assert identity(Subset(base, range(10))) and not identity([1, 2])
    assert "call random_split and the like after it" in remedy(["dataset.indices of job.loader number 0 is 1 on w1 and 2 on w0"])


def test_workers_with_seeds_of_their_own_do_not_train_together(launch: Launch) -> None:
    run = launch(SEEDED, "--workers", "2")
    assert run.end() == 1
    assert "stretto.join(seed=…) is 1002 on w2 and 1000 on w0" in run.result["error"]
    assert "stretto.join(seed=0)" in run.result["error"]
    assert not run.commits(), "nothing was trained"


def test_a_newcomer_with_another_seed_is_refused_and_the_job_goes_on(launch: Launch) -> None:
    run = launch(SEEDED, "--workers", "1:2")
    run.until_step(2)
    run.ask("scale", workers=2)
    assert run.end() == 0, run.output()
    refused = run.events("refused")
    assert [one.worker for one in refused] == ["w1", "w2"]
    assert "stretto.join(seed=…) is 1002 on w2 and 1000 on w0" in refused[1].text
    assert {one.workers for one in run.commits()} == {1}
    assert audit(run.records()).holds
    assert {one.seed for one in run.records() if isinstance(one, LoaderLine)} == {1000}


HELPED = script("import helper", epochs=1000, pause_s=0.01).replace("mse_loss(model(x), y)", "mse_loss(model(x), y) * helper.SCALE")


@pytest.mark.parametrize(("file", "named"), [("job.py", "the code of job.py ("), ("helper.py", "the code of the module helper (")])
def test_a_script_that_is_edited_is_not_the_jobs_any_more(launch: Launch, tmp_path: Path, file: str, named: str) -> None:
    """The newcomer would train with another loss, and nothing else would show it."""
    (tmp_path / "helper.py").write_text("SCALE = 1.0\n")
    run = launch(HELPED, "--workers", "1:2", "--max-restarts", "50")
    run.until_step(2)
    before = (tmp_path / file).read_text()
    (tmp_path / file).write_text(before.replace("SCALE = 1.0", "SCALE = 2.0").replace("* helper.SCALE", "* 2"))
    run.ask("scale", workers=2)
    gone = run.until(lambda: [one for one in run.events("unreplaced") if "is not replaced any more" in one.text])
    refused = run.events("refused")
    assert [one.worker for one in refused] == ["w1", gone[0].worker] == ["w1", "w2"]
    assert named in refused[0].text and "was changed after the job began" in refused[0].text
    (tmp_path / file).write_text("# a comment is no change\n" + before)
    run.ask("scale", workers=2)
    run.until_workers(2)
    run.ask("stop", now=True)
    run.end()


def test_a_newcomer_that_fails_at_its_start_costs_the_job_nothing(launch: Launch) -> None:
    """A folder that the first worker has made is an error for the next, as it would be for a second `python train.py`."""
    run = launch(script("os.mkdir('results')", epochs=8, pause_s=0.01), "--workers", "1:2", "--max-restarts", "50")
    run.until_step(2)
    run.ask("scale", workers=2)
    assert run.end() == 0, run.output()
    assert [one.worker for one in run.events("crashed")] == ["w1", "w2"]
    assert "is not replaced any more" in run.events("unreplaced")[0].text
    assert {one.workers for one in run.commits()} == {1}


@pytest.mark.parametrize(
    ("trouble", "difference"),
    [
        pytest.param(
            "if WORKER == 'w1': data = job.loader(dataset, batch_size=16, shuffle=False, slices=8)",
            "the number of job.loader calls is 2 on w1 and 1 on w0",
            marks=pytest.mark.long,
        ),
        ("if WORKER == 'w1': data.source.shuffle = False", "shuffle of job.loader number 0 is False on w1 and True on w0"),
        (
            "if WORKER == 'w1': torch.set_default_dtype(torch.float64)",
            "torch.get_default_dtype() is torch.float64 on w1 and torch.float32 on w0",
        ),
        pytest.param(
            "torch.set_num_threads(2)\nif WORKER == 'w1': torch.set_num_threads(3)",
            "torch.get_num_threads() is 3 on w1 and 2 on w0",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_differs_is_named_and_the_others_go_on(launch: Launch, trouble: str, difference: str) -> None:
    run = launch(script(trouble, epochs=8, pause_s=0.01), "--workers", "1:2", "--start", "2", "--max-restarts", "0")
    assert difference in run.until_event("refused").text
    assert run.end() == 0, run.output()
    assert {one.workers for one in run.commits()} == {1}


def test_a_worker_that_reads_other_samples_all_the_same_is_found_out_before_the_step(launch: Launch) -> None:
    """A control: the seed is changed behind the comparison's back."""
    run = launch(
        script("""
        if WORKER == "w1": data.source.seed = 99
    """),
        "--workers",
        "2",
    )
    assert run.end() == 1
    assert "order of the samples" in run.result["error"]
    assert not audit(run.records()).holds


def test_orders_that_workers_disagree_about_are_in_the_journal_once_for_each(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    recorder = Recorder(RunFolder(tmp_path), observer=Silent())
    said = (("w0", 0, "aa"), ("w1", 0, "aa"), ("w2", 0, "bb"), ("w2", 0, "bb"), ("w1", 1, "cc"), ("w0", 0, "aa"))
    for worker, epoch, order in said:
        recorder.order(worker, loader=0, epoch=epoch, order=order)
    assert recorder.close() is None
    lines = [one for one in RunFolder(tmp_path).records() if isinstance(one, Orders)]
    assert [(one.epoch, dict(one.orders)) for one in lines] == [(0, {"w0": "aa", "w2": "bb"})]
