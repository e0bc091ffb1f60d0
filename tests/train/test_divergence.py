"""Workers whose scripts do different things are noticed before a wrong step is committed, and the message says what differs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launching import environment, stretto

from stretto.train.reduce.preamble import Place, Preamble, first_difference, judge

TRAINING = Place("training", 0, 1, 7, 0, 32, 16)
EVALUATION = Place("evaluation", 1, 0, 0, 0, 0, 16)


def test_members_at_one_place_with_equal_checks_go_on():
    assert judge([Preamble(TRAINING, 0, {"a": "1"}), Preamble(TRAINING, 7, {"a": "1"})], tick=7) == judge(
        [Preamble(TRAINING, 0, {"a": "1"})], tick=9
    )


def test_who_joined_later_and_stands_elsewhere_goes():
    found = judge([Preamble(TRAINING, 0), Preamble(EVALUATION, 5), Preamble(TRAINING, 3)], tick=9)
    assert found.misplaced == (1,) and not found.scattered and not found.differing


def test_nobody_is_sent_away_where_members_from_the_beginning_disagree():
    assert judge([Preamble(TRAINING, 0), Preamble(EVALUATION, 0)], tick=9).scattered


@pytest.mark.parametrize(("joined", "misplaced"), [(9, (1,)), (4, ())])
def test_a_difference_sends_away_who_has_just_joined_and_stops_the_job_otherwise(joined, misplaced):
    found = judge([Preamble(TRAINING, 0, {"a": "1"}), Preamble(TRAINING, joined, {"a": "2"})], tick=9)
    assert found.differing == ("a",) and found.misplaced == misplaced


def test_who_waits_for_its_state_is_not_compared():
    assert not judge([Preamble(TRAINING, 0, {"a": "1"}), Preamble(TRAINING, 9, {})], tick=9).differing


def test_a_preamble_arrives_as_it_was_sent():
    mine = Preamble(TRAINING, 3, {"steps": "ab"})
    assert Preamble.decode(mine.encode()) == mine


def test_the_first_difference_is_named_with_both_values_and_workers():
    details = [{"m": [{"p": 0.5}]}, {"m": [{"p": 0.5}]}, {"m": [{"p": 0.1}]}]
    assert first_difference(details, ["w0", "w1", "w2"]) == "m[0].p is 0.5 on w0 and 0.1 on w2"
    assert first_difference(details[:2], ["w0", "w1"]) == ""


SCRIPT = """
import os, time
import torch, torch.nn as nn, torch.nn.functional as F
import stretto
from torch.utils.data import TensorDataset
WORKER = os.environ.get("STRETTO_WORKER", "alone")
job = stretto.join(seed=5)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
job.share(model=model, optimizer=optimizer)
g = torch.Generator().manual_seed(1)
x, y = torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g)
data = job.loader(TensorDataset(x, y), batch_size=16)
SETUP
for epoch in job.epochs(EPOCHS):
    EPOCH
    for STEP in DATA:
        for a, b in step:
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            step.log(loss=loss)
        AFTER
        time.sleep(PAUSE)
    END
print("digest", job.digest())
"""
UPDATE = "optimizer.step(); optimizer.zero_grad()"


def script(*, setup="pass", epoch="pass", step="step", data="data", after=UPDATE, end="pass", epochs=4, pause=0.15) -> str:
    text = SCRIPT.replace("SETUP", setup).replace("EPOCHS", str(epochs)).replace("EPOCH", epoch).replace("STEP", step)
    return text.replace("DATA", data).replace("AFTER", after).replace("END", end).replace("PAUSE", str(pause))


def plain(text: str, tmp_path) -> str:
    path = tmp_path / "plain.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=250, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


STAGED = "if epoch == 0 and job.step == 0: model[2].p = 0.1"
"""Set once: a worker that joins later has the rate that the module was made with."""
REFUSED = {
    "a counter of enumerate that decides": (
        script(step="i, step", data="enumerate(data)", after="\n        if i % 2 == 1:\n            " + UPDATE),
        ["`i` of enumerate", "step.index"],
    ),
    "an attribute that was set once": (script(epoch=STAGED), ["model.2.p is 0.1 on w0 and 0.5 on w1", "job.step"]),
    "a count that stops the script": (
        script(setup="bad = 0", end="\n    bad += 1\n    if bad >= 4:\n        break"),
        ["`bad` is 0 here and 1 in the job", "job.state.bad"],
    ),
}


@pytest.mark.parametrize("case", [pytest.param(name, marks=[] if "enumerate" in name else pytest.mark.long) for name in REFUSED])
def test_a_newcomer_whose_script_would_do_something_else_is_sent_away_and_the_job_goes_on(launch, tmp_path, case):
    text, words = REFUSED[case]
    expected = plain(text.replace("0.15)", "0)"), tmp_path)
    run = launch(text, "--workers", "1:2", "--max-restarts", "50")
    run.until_step(8)
    run.ask("scale", workers=2)
    refused = run.until_event("refused")
    assert all(word in refused.text for word in words), refused.text
    assert run.end() == 0, run.output()
    assert run.result["digest"] == expected


SLOW = script(epoch=STAGED, after=f"{UPDATE}; WORKER == 'w0' or time.sleep(0.3)").replace(
    "loss.backward()", "loss.backward(); WORKER == 'w0' or time.sleep(0.3)"
)


def test_a_newcomer_that_differs_leaves_although_the_others_are_through_with_their_slices_long_before_it(launch):
    """They break the roster up while it still computes; it must not come back into the next one to differ again, for ever."""
    run = launch(SLOW, "--workers", "1:2", "--max-restarts", "50")
    run.until_step(2)
    run.ask("scale", workers=2)
    refused = run.until_event("refused")
    assert "model.2.p is 0.1 on w0 and 0.5 on w1" in refused.text
    assert run.end() == 0, run.output()
    assert len(run.events("broken")) <= 2 * len(run.events("refused"))


STOPPED = {
    "an optimizer that steps on one worker only": (
        script(after=f"if WORKER != 'w1' or step.index != 5: {UPDATE}"),
        ["steps of the optimizers", "optimizer is 1 on w0 and nothing on w1", "at step 6"],
    ),
    "a rate that differs": (
        script(after=f"optimizer.param_groups[0]['lr'] = 0.01 if WORKER == 'w0' or step.index < 3 else 0.02; {UPDATE}"),
        ["settings of the optimizers", "lr is 0.01 on w0 and 0.02 on w1"],
    ),
    "a parameter that differs": (
        script(after=f"{UPDATE}; WORKER == 'w1' and step.index == 3 and model[3].weight.data[0, 0].add_(1e-3)", epochs=14, pause=0),
        ["shared tensors", "model.3.weight"],
    ),
    "an evaluation on one worker only": (
        script(
            setup="val = job.loader(TensorDataset(x, y), batch_size=16, train=False)",
            after=f"{UPDATE}\n        if WORKER == 'w1' and step.index == 3:\n            for s in val:\n"
            "                for a, b in s: pass",
        ),
        ["w0 is in training step 4", "w1 is in step 0 of the evaluation of loader 1"],
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if "parameter" in name or "evaluation" in name else pytest.mark.long) for name in STOPPED]
)
def test_workers_that_do_different_things_stop_before_the_step_is_committed(launch, case):
    text, words = STOPPED[case]
    run = launch(text, "--workers", "2")
    assert run.end() != 0, run.output()
    assert all(word in run.output() for word in words), run.output()
    assert "Traceback" not in run.output()


@pytest.mark.slow
def test_the_same_script_on_both_workers_is_not_stopped(launch, tmp_path):
    """A control: nothing of the above is noticed where nothing differs, for longer than a whole turn of the tensors."""
    text = script(epoch=STAGED, epochs=14, pause=0)
    run = launch(text, "--workers", "2")
    assert run.end() == 0, run.output()
    assert run.result["digest"] == plain(text, tmp_path)


@pytest.mark.slow
def test_a_local_count_is_refused_at_a_resume_too_where_nobody_is_left_to_compare_with(launch, tmp_path):
    from test_catch_up import kill_everything

    text, words = REFUSED["a count that stops the script"]
    run = launch(text, "--workers", "1", "--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "4")
    run.until_step(9)
    kill_everything(run)
    done = stretto("resume", "--runs", str(run.folder.path.parent), "--quiet", "job", cwd=tmp_path)
    assert done.returncode != 0
    assert all(word in done.stdout + done.stderr for word in words), done.stdout + done.stderr


@pytest.mark.slow
def test_an_attribute_that_was_set_once_is_refused_at_a_resume_too(launch, tmp_path):
    from test_catch_up import kill_everything

    run = launch(script(epoch=STAGED), "--workers", "1", "--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "4")
    run.until_step(9)
    kill_everything(run)
    done = stretto("resume", "--runs", str(run.folder.path.parent), "--quiet", "job", cwd=tmp_path)
    assert done.returncode != 0
    assert "model.2.p is 0.1 on the job and 0.5 on this worker" in done.stdout + done.stderr


LAST = {
    "an attribute that was set once": (
        script(epoch=STAGED).replace("for a, b", "BEREFT\n        for a, b"),
        "model.2.p is 0.1 on the job and 0.5 on this worker",
    ),
    "a count that stops the script": (
        script(setup="bad = 0", epoch="BEREFT", end="\n    bad += 1\n    if bad >= 4:\n        break"),
        "`bad` is 0 here and 1 in the job",
    ),
}


def bereaved(launch, text, tmp_path):
    """A run whose first worker is killed by the newcomer, where the script says so."""
    pid = tmp_path / "pid"
    kill = f"os.path.exists('{pid}') and (os.kill(int(open('{pid}').read()), 9), os.remove('{pid}'))"
    run = launch(text.replace("BEREFT", f"WORKER == 'w1' and {kill}"), "--workers", "1:2", "--max-restarts", "0")
    run.until_step(8)
    pid.write_text(str(run.pids()["w0"]))
    run.ask("scale", workers=2)
    run.until(lambda: not pid.exists())
    return run


@pytest.mark.parametrize("case", LAST)
def test_a_newcomer_that_differs_and_is_the_last_one_left_stops_the_job(launch, tmp_path, case):
    """Everybody that it could be compared with died after it had the state and before its first exchange."""
    text, words = LAST[case]
    run = bereaved(launch, text, tmp_path)
    assert run.end() != 0, run.output()
    assert words in run.output(), run.output()
    assert "Traceback" not in run.output()
    assert {commit.workers for commit in run.commits()} == {1} and len(run.commits()) < 20, "it has committed nothing alone"


@pytest.mark.slow
def test_a_newcomer_that_is_the_last_one_left_and_does_not_differ_goes_on(launch, tmp_path):
    """A control: what the script sets in every epoch is not taken for something that was set once."""
    text = script(epoch="model[2].p = 0.1").replace("for a, b", "BEREFT\n        for a, b")
    run = bereaved(launch, text, tmp_path)
    assert run.end() == 0, run.output()
    assert run.result["digest"] == plain(text.replace("BEREFT", "pass"), tmp_path)
