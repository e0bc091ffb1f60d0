"""A script under plain python: what the library promises and refuses there. Each case is a process of its own."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch._dynamo  # what every optimizer imports when it is made: once for all the forks below
from launching import environment

import stretto.train.job

HEAD = """
import sys, torch, torch.nn as nn, torch.nn.functional as F
import stretto
from torch.utils.data import TensorDataset
job = stretto.join(seed=0)
g = torch.Generator().manual_seed(1)
x, y = torch.randn(64, 6, generator=g), torch.randint(0, 3, (64,), generator=g)
"""


torch.set_num_threads(1)  # a pool of threads would not survive the forks below


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def _script(body: str, out: str, err: str) -> None:
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    code = 0
    try:
        exec(compile(body, "script.py", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(body: str, *, head: str = HEAD) -> Done:
    """The script in a process of its own, forked from this one, which has torch."""
    with tempfile.TemporaryDirectory() as where:
        out, err = f"{where}/out", f"{where}/err"
        pid = os.fork()
        if not pid:
            _script(head + textwrap.dedent(body), out, err)
        for _ in range(24_000):  # only against hanging for ever: the machine may be busy
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return Done(os.waitstatus_to_exitcode(status), Path(out).read_text(), Path(err).read_text())
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise AssertionError("the script hangs")


def check(body: str, *, head: str = HEAD) -> str:
    done = run(body, head=head)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_fresh(body: str) -> None:
    """In an interpreter of its own: one that is forked has the freed memory of all tests before it."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=250,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr


def refused(body: str, *words: str, head: str = HEAD) -> None:
    done = run(body, head=head)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "ScriptError" in last, done.stderr
    for word in words:
        assert word in last


def test_the_gradient_is_that_of_the_whole_batch():
    check("""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    job.share(model=model, optimizer=opt)
    data = job.loader(TensorDataset(x, y), batch_size=64, shuffle=False)
    for step in data:
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
        mine = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        whole = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        assert all(torch.allclose(m, w, atol=1e-6) for m, w in zip(mine, whole))
    """)


def test_a_short_last_batch_is_weighted_by_its_samples():
    check("""
    model = nn.Linear(6, 3)
    job.share(model=model)
    data = job.loader(TensorDataset(x[:43], y[:43]), batch_size=32, tail="keep", shuffle=False)
    counts = []
    for step in data:
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
        counts.append(step.count)
        low, high = step.first, step.first + step.count
        whole = torch.autograd.grad(F.cross_entropy(model(x[low:high]), y[low:high]), list(model.parameters()))
        assert all(torch.allclose(p.grad, w, atol=1e-6) for p, w in zip(model.parameters(), whole))
        model.zero_grad()
    assert counts == [32, 11], counts
    """)


def test_two_backwards_in_a_slice_are_added_as_autograd_adds_them():
    check("""
    model = nn.Linear(6, 3)
    job.share(model=model)
    data = job.loader(TensorDataset(x, y), batch_size=16, shuffle=False)
    for step in data:
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
            if step.index != 1:
                (model(a) ** 2).mean().backward()
        low = step.first
        loss = F.cross_entropy(model(x[low:low+16]), y[low:low+16])
        if step.index != 1:
            loss = loss + (model(x[low:low+16]) ** 2).mean()
        whole = torch.autograd.grad(loss, list(model.parameters()))
        assert all(torch.allclose(p.grad, w, atol=1e-6) for p, w in zip(model.parameters(), whole))
        model.zero_grad()
    """)


def test_a_second_backward_that_comes_late_repeats_the_pass():
    check("""
    model = nn.Linear(6, 3)
    job.share(model=model)
    data = job.loader(TensorDataset(x, y), batch_size=16, shuffle=False)
    for step in data:
        seen = 0
        for a, b in step:
            seen += 1
            F.cross_entropy(model(a), b).backward()
            if step.index == 2:
                (model(a) ** 2).mean().backward()
        assert seen == (16 if step.index == 2 else 8), (step.index, seen)
        low = step.first
        loss = F.cross_entropy(model(x[low:low+16]), y[low:low+16])
        if step.index == 2:
            loss = loss + (model(x[low:low+16]) ** 2).mean()
        whole = torch.autograd.grad(loss, list(model.parameters()))
        assert all(torch.allclose(p.grad, w, atol=1e-6) for p, w in zip(model.parameters(), whole))
        model.zero_grad()
    """)


def test_unused_frozen_shared_and_half_precision_parameters():
    check("""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.idle = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(2, 2)
            self.again = self.a
            self.frozen = nn.Linear(3, 3)
            self.frozen.requires_grad_(False)
            self.bf16 = nn.Linear(3, 3).to(torch.bfloat16)
        def forward(self, x):
            return self.bf16(self.frozen(self.b(self.again(self.a(x)))).to(torch.bfloat16)).float()
    model = Net()
    job.share(model=model)
    for step in job.loader(TensorDataset(x, y), batch_size=32):
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
        assert model.idle.weight.grad is None and model.frozen.weight.grad is None
        assert model.a.weight.grad is not None and model.bf16.weight.grad.dtype == torch.bfloat16
    """)


def test_a_parameter_that_is_frozen_between_two_passes_has_the_gradient_of_the_whole_batch_once_it_is_thawed():
    job = stretto.join(seed=0)
    model, other = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.0)
    job.share(model=model, other=other, optimizer=optimizer)
    inputs = torch.arange(32.0).reshape(16, 2)
    for step in job.loader(torch.utils.data.TensorDataset(inputs), batch_size=8, shuffle=False):
        model.requires_grad_(True)
        optimizer.zero_grad()
        for (x,) in step:
            model(x).mean().backward()
        assert torch.allclose(model.weight.grad, inputs[step.first : step.first + 8].mean(0))
        model.requires_grad_(False)
        for (x,) in step:
            other(x).mean().backward()
        optimizer.step()
    job.close()


def test_a_second_pass_has_the_same_data_and_its_own_gradient():
    check("""
    model = nn.Linear(6, 3)
    job.share(model=model)
    for step in job.loader(TensorDataset(x, y), batch_size=32):
        first = [a.clone() for a, b in step if not F.cross_entropy(model(a), b).backward()]
        grad = model.weight.grad.clone()
        model.zero_grad()
        second = [a.clone() for a, b in step if not (2 * F.cross_entropy(model(a), b)).backward()]
        assert all(torch.equal(p, q) for p, q in zip(first, second)) and step.passes == 2
        assert torch.allclose(model.weight.grad, 2 * grad)
        model.zero_grad()
    """)


def test_batch_norm_statistics_are_averages_over_slices_and_counters_count_them():
    check("""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    job.share(model=model)
    start = model[0].running_mean.clone()
    for step in job.loader(TensorDataset(x, y), batch_size=64, shuffle=False):
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
    expected = torch.stack([0.9 * start + 0.1 * part.mean(0) for part in x.split(8)]).mean(0)
    assert torch.allclose(model[0].running_mean, expected, atol=1e-6)
    assert model[0].num_batches_tracked == 8
    """)


def test_a_buffer_that_starts_to_move_is_noticed():
    check("""
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(6, 3)
            self.register_buffer("total", torch.zeros(()))
            self.register_buffer("mask", torch.full((5,), 0.3))
        def forward(self, x):
            if job.step >= 1:
                self.total += x.sum()
            return self.line(x)
    model = Counting()
    job.share(model=model)
    for step in job.loader(TensorDataset(x, y), batch_size=32, shuffle=False, slices=4):
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
    assert torch.allclose(model.total, x[32:].sum() / 4, atol=1e-4), (model.total, x[32:].sum() / 4)
    assert torch.equal(model.mask, torch.full((5,), 0.3))
    """)


def test_an_evaluation_covers_every_sample_once():
    check("""
    job.share()
    val = job.loader(TensorDataset(x[:61], y[:61]), batch_size=16, train=False)
    for sweep in range(2):
        seen = []
        for step in val:
            for a, b in step:
                seen.append(a)
                step.log(first=a[:, 0].mean())
        assert torch.equal(torch.cat(seen), x[:61])
        assert abs(val.metrics["first"] - x[:61, 0].double().mean().item()) < 1e-6
    """)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("job.loader(TensorDataset(x, y), batch_size=4)", ["batch_size=4", "slices=8", "use slices=4, or batch_size=8 or more"]),
        ("job.loader(TensorDataset(x, y), batch_size=12)", ["batch_size=12", "use slices=4, or batch_size=8 or 16"]),
        ("job.loader(TensorDataset(x, y), batch_size=128)", ["64 samples", "batch_size=128", "tail='keep'"]),
        ("job.loader(TensorDataset(x, y), batch_size=8, slices=0)", ["slices=0"]),
        ("job.loader(TensorDataset(x, y), batch_size=8, tail='half')", ["tail='half'"]),
        ("job.loader(TensorDataset(x, y), batch_size=8); job.loader(TensorDataset(x, y), batch_size=8, slices=4)", ["slices=4"]),
        ("stretto.join()", ["second time"]),
        ("job.share(model=3)", ["model", "int", "state_dict"]),
        ("job.share(a=nn.SyncBatchNorm(3)); next(iter(job.loader(TensorDataset(x, y), batch_size=8)))", ["SyncBatchNorm"]),
        ("next(job.epochs(3))", ["job.loader"]),
        ("job.loader(torch.utils.data.DataLoader(TensorDataset(x, y)), batch_size=8)", ["DataLoader", "give it the dataset"]),
        ("job.loader(torch.utils.data.ChainDataset([]), batch_size=8)", ["a ChainDataset", "__len__ and __getitem__"]),
        ("job.loader(iter([1, 2]), batch_size=8)", ["list_iterator", "__len__ and __getitem__"]),
        ("next(iter(job.loader(TensorDataset(x, y), batch_size=8)))", ["shares no parameter", "job.share(model=model"]),
        (
            "job.share(o=torch.optim.SGD(nn.Linear(6, 3).parameters())); next(iter(job.loader(TensorDataset(x, y), batch_size=8)))",
            ["job.share(o=…)", "shape (3, 6)", "no shared module"],
        ),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_fix(body, words):
    refused(body, *words)


LOOP = """
model = nn.Linear(6, 3)
emb = nn.Embedding(5, 2, sparse=True)
job.share(model=model, emb=emb)
data = job.loader(TensorDataset(x, y), batch_size=32)
for step in data:
    {before}
    for a, b in step:
        {inside}
        F.cross_entropy(model(a), b).backward()
        {end}
    {after}
"""


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"end": "break"}, ["left early", "continue"]),
        ({"before": "continue"}, ["never iterated over"]),
        ({"after": "F.cross_entropy(model(x), y).backward()"}, ["outside the loop"]),
        ({"after": "torch.set_num_threads(2)"}, ["torch.get_num_threads() is 2 and was 1", "before the first step"]),
        ({"after": "step.log(loss=1)"}, ["inside the loop"]),
        ({"end": "step.log(loss=model(a))"}, ["loss", "shape"]),
        ({"after": "torch.optim.Adam(model.parameters()).step()"}, ["(Adam)", "is not shared", "job.share(optimizer=…)"]),
        ({"inside": "next(iter(data))"}, ["before step 0 of loader 0 has ended", "one training loader at a time"]),
        ({"inside": "emb(torch.tensor([1])).sum().backward()"}, ["sparse", "nn.Embedding"]),
    ],
)
def test_a_loop_that_cannot_be_right_is_refused_with_the_fix(places, words):
    refused(LOOP.format(**{"before": "pass", "inside": "pass", "end": "pass", "after": "pass", **places}), *words)


def test_every_pass_of_a_step_brings_what_it_logs_and_the_first_word_on_a_name_counts():
    check("""
    model = nn.Linear(6, 3)
    job.share(model=model)
    for step in job.loader(TensorDataset(x, y), batch_size=64):
        for a, b in step:
            step.log(critic=1, both=10)
        for a, b in step:
            step.log(generator=2, both=20)
        assert step.metrics == {"critic": 1, "both": 10, "generator": 2}, step.metrics
    assert job.last_metrics == step.metrics
    """)


SHARED = """
model = nn.Linear(6, 3)
opt = {optimizer}(model.parameters(), lr=0.1)
class Wrapper:
    def state_dict(self): return opt.state_dict()
    def load_state_dict(self, held): opt.load_state_dict(held)
job.share(model=model{also})
for step in job.loader(TensorDataset(x, y), batch_size=32):
    for a, b in step:
        F.cross_entropy(model(a), b).backward()
    opt.step()
    opt.zero_grad()
"""


def test_an_optimizer_that_is_shared_by_a_wrapper_is_accepted():
    check(SHARED.format(optimizer="torch.optim.Adam", also=", opt=Wrapper()"))


def test_an_optimizer_without_a_state_is_shared_too_because_its_rate_is_a_state():
    refused(SHARED.format(optimizer="torch.optim.SGD", also=""), "(SGD)", "is not shared itself")


LEAVING = """
model = nn.Linear(6, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job.share(model=model, optimizer=opt)
data = job.loader(TensorDataset(x, y), batch_size=16)
seen = []
for epoch in job.epochs(3):
    for step in data:
        {before}
        seen.append((step.index, step.epoch, step.first))
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
        opt.step()
        opt.zero_grad()
        {after}
print(seen, job.step)
"""


def test_a_step_at_whose_end_the_sweep_is_left_counts_and_the_next_epoch_begins_anew():
    out = check(LEAVING.format(before="pass", after="if step.first == 16: break"))
    assert out.strip() == "[(0, 0, 0), (1, 0, 16), (2, 1, 0), (3, 1, 16), (4, 2, 0), (5, 2, 16)] 6"


def test_a_step_that_was_not_begun_when_the_sweep_was_left_does_not_count():
    out = check(LEAVING.format(before="if step.first == 16: break", after="pass"))
    assert out.strip().endswith("[(0, 0, 0), (1, 1, 0), (2, 2, 0)] 3"), out


def test_two_training_loaders_are_swept_over_one_after_the_other():
    refused(
        """
    job.share(model=nn.Linear(6, 3))
    one, two = (job.loader(TensorDataset(x, y), batch_size=16) for _ in range(2))
    for a, b in zip(one, two):
        pass
    """,
        "zip over a training loader",
        "StackDataset",
    )


def test_a_step_takes_log2_of_the_slices_and_two_buffers_of_the_gradients_size_and_later_steps_use_them_again():
    check_fresh("""
    def memory(key):
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024
    def peak():
        open("/proc/self/clear_refs", "w").write("5")
        before = memory("VmRSS")
        for (a,) in step:
            model(a).square().mean().backward()
        return (memory("VmHWM") - before) / size, (memory("VmRSS") - before) / size
    model = nn.Linear(2048, 4096, bias=False)
    job.share(model=model)
    size = model.weight.numel() * 4 / 2**20
    for step in job.loader(TensorDataset(torch.randn(32, 2048)), batch_size=16):
        most, held = peak()
        model.weight.grad = None
        assert (4.5 < most < 5.5) if step.index == 0 else (most < 3.5 and held < 0.5), (step.index, most, held)
    """)


def test_rng_is_reset_for_every_slice():
    """Two runs that draw different amounts between slices see the same dropout."""
    body = """
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    job.share(model=model, optimizer=opt)
    for step in job.loader(TensorDataset(x, y), batch_size=32):
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
            {noise}
        opt.step()
        opt.zero_grad()
    print(job.digest())
    """
    quiet, noisy = check(body.format(noise="pass")), check(body.format(noise="torch.rand(step.index + 3)"))
    assert quiet == noisy


@pytest.mark.parametrize(("seed", "code"), [("", 1), ("torch.manual_seed(3)", 0)])
def test_a_model_that_was_made_before_join_is_refused_unless_the_script_has_seeded_torch(tmp_path, seed, code):
    path = tmp_path / "train.py"
    path.write_text(f"import torch, stretto\n{seed}\nmodel = torch.nn.Linear(2, 2)\njob = stretto.join(seed=0)\n")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=250, env=environment(), check=False)
    assert done.returncode == code, done.stderr
    assert (f"{path}:4: ScriptError: `model` was made before stretto.join" in done.stderr) == bool(code)
    assert "Traceback" not in done.stderr


def test_a_buffer_that_changes_its_shape_is_refused():
    done = run("""
        class Observed(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(6, 3)
                self.register_buffer("scale", torch.ones(1))
            def forward(self, x):
                self.scale = self.inner.weight.detach().abs().amax(1)
                return self.inner(x)
        model = Observed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.share(model=model, optimizer=optimizer)
        for step in job.loader(TensorDataset(x, y), 16):
            for a, b in step:
                F.cross_entropy(model(a), b).backward()
            optimizer.step()
            optimizer.zero_grad()
    """)
    assert done.returncode == 1
    assert "scale has the shape (3,) and had (1,) when training began" in done.stderr
