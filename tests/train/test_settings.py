"""Settings that change bits: free until training begins, the same after that, and told when stretto sets them itself."""

from __future__ import annotations

import re
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from launching import GUARD_S, environment

import stretto
from stretto.core.errors import ScriptError
from stretto.train.entry.fingerprint import TorchSettings, fingerprint, machine, settings

BEGIN = """
import torch, torch.nn.functional as F
BEFORE
import stretto
job = stretto.join(JOIN)
AFTER
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
inputs = torch.randn(32, 4)
data = job.loader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
for epoch in job.epochs(1):
    for step in data:
        for x, y in step:
            F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        WITHIN
print(torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision(), model.weight.dtype)
"""


def python(
    tmp_path: Path, *, before: str = "", join: str = "", after: str = "", within: str = ""
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "train.py"
    path.write_text(BEGIN.replace("BEFORE", before).replace("JOIN", join).replace("AFTER", after).replace("WITHIN", within))
    env = environment({"OMP_NUM_THREADS": "2"})
    return subprocess.run([sys.executable, str(path)], env=env, text=True, capture_output=True, timeout=GUARD_S, check=False)


@pytest.mark.slow
def test_what_is_set_before_or_after_join_stays(tmp_path: Path) -> None:
    chosen = "torch.set_float32_matmul_precision('high'); torch.set_default_dtype(torch.float64)"
    for place in ("before", "after"):
        done = python(tmp_path, **{place: chosen})
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["1", "torch.float64", "high", "torch.float64"]
    done = python(tmp_path, after="torch.set_num_threads(2); torch.use_deterministic_algorithms(False)")
    assert done.stdout.split()[0] == "2", done.stderr


@pytest.mark.slow
def test_what_stretto_sets_is_told_in_one_line_and_what_was_chosen_is_not(tmp_path: Path) -> None:
    told = [line for line in python(tmp_path).stderr.splitlines() if line.startswith("stretto")]
    assert len(told) == 1
    assert "torch.set_num_threads(1) (it was 2)" in told[0] and "torch.use_deterministic_algorithms(True" in told[0]
    assert "set it after stretto.join" in told[0]
    quiet = python(tmp_path, before="torch.use_deterministic_algorithms(True)", join="threads=1")
    assert quiet.returncode == 0 and "stretto has called" not in quiet.stderr


def test_a_setting_that_changes_during_training_is_refused_by_its_name_with_both_values(tmp_path: Path) -> None:
    done = python(tmp_path, within="torch.set_num_threads(2)")
    assert done.returncode != 0
    assert "torch.get_num_threads() is 2 and was 1 when training began" in done.stderr


@pytest.fixture
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_the_check_of_a_boundary_finds_a_change_and_costs_little(precision: None) -> None:
    fixed = TorchSettings()
    fixed.check()
    assert fixed.fix() == settings()
    assert fingerprint() == {**machine(), **settings()}
    fixed.check()
    torch.set_float32_matmul_precision("medium")
    with pytest.raises(ScriptError, match=r"torch.get_float32_matmul_precision\(\) is medium and was"):
        fixed.check()
    assert fixed.fix()["torch.get_float32_matmul_precision()"] == "medium"
    print(f"{min(timeit.repeat(fixed.check, number=1000, repeat=5)) * 1e3:.2f} us a check")


def test_the_switches_of_cuda_can_be_read_also_after_both_ways_of_setting_them() -> None:
    code = (
        "from stretto.train.entry.fingerprint import _READ_CUDA as read; import torch; "
        "print([one() for one in read.values()]); torch.backends.cuda.matmul.allow_tf32 = True; "
        "torch.backends.cuda.matmul.fp32_precision = 'ieee'; print([one() for one in read.values()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), text=True, capture_output=True, timeout=GUARD_S, check=False
    )
    assert done.stdout.splitlines() == ["[False, True, False, False]", "['ieee', True, False, False]"], done.stderr


@pytest.mark.parametrize("seed", [None, "7", 1.5, True])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(ScriptError, match=re.escape(f"stretto.join(seed={seed!r}): a job needs a whole number as its seed")):
        stretto.join(seed=seed)  # type: ignore[arg-type]
