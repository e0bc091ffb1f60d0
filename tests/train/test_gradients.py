"""Gradients mean what they mean in PyTorch, and slips are refused before the step that they would spoil. Plain python."""

from __future__ import annotations

import pytest
from test_plain_python import check, refused

SETUP = """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job.share(model=model, optimizer=opt)
data = job.loader(TensorDataset(x, y), batch_size=16, shuffle=False)
def loss_of(a, b): return F.cross_entropy(model(a), b)
def whole(step):
    low = step.first
    return torch.autograd.grad(loss_of(x[low:low + 16], y[low:low + 16]), list(model.parameters()))
"""


def test_gradients_are_added_to_what_is_there_as_pytorch_adds_them():
    check(
        SETUP
        + """
total = None
for step in data:
    for a, b in step:
        (loss_of(a, b) / 4).backward()
    mine = [g / 4 for g in whole(step)]
    total = mine if total is None else [t + m for t, m in zip(total, mine)]
    assert all(torch.allclose(p.grad, t, atol=1e-6) for p, t in zip(model.parameters(), total)), step.index
assert step.index == 3
"""
    )


@pytest.mark.parametrize(
    "zero",
    [
        "opt.zero_grad()",
        "opt.zero_grad(set_to_none=False)",
        "model.zero_grad()",
        "[setattr(p, 'grad', None) for p in model.parameters()]",
    ],
)
@pytest.mark.parametrize("at_the_top", [True, False])
def test_zero_grad_may_stand_before_the_slices_or_after_the_step(zero, at_the_top):
    check(
        SETUP
        + f"""
for step in data:
    if {at_the_top}: {zero}
    for a, b in step:
        loss_of(a, b).backward()
    assert all(torch.allclose(p.grad, w, atol=1e-6) for p, w in zip(model.parameters(), whole(step))), step.index
    opt.step()
    if not {at_the_top}: {zero}
"""
    )


def test_a_gradient_that_the_script_keeps_is_not_overwritten_by_the_next_pass():
    check(
        SETUP
        + """
for step in data:
    for a, b in step:
        loss_of(a, b).backward()
    kept = [p.grad for p in model.parameters()]
    values = [g.clone() for g in kept]
    opt.zero_grad()
    for a, b in step:
        (-2 * loss_of(a, b)).backward()
    assert all(torch.equal(g, v) for g, v in zip(kept, values))
    assert all(torch.allclose(p.grad, -2 * v, atol=1e-6) for p, v in zip(model.parameters(), values))
    opt.step()
    opt.zero_grad()
"""
    )


def test_a_gradient_put_there_by_hand_counts_as_a_slice_s():
    check(
        SETUP
        + """
from torch.func import functional_call, grad
for step in data:
    for a, b in step:
        def loss(params): return F.cross_entropy(functional_call(model, params, (a,)), b)
        for name, g in grad(loss)(dict(model.named_parameters())).items():
            model.get_parameter(name).grad = g
    assert all(torch.allclose(p.grad, w, atol=1e-6) for p, w in zip(model.parameters(), whole(step))), step.index
    opt.step()
    opt.zero_grad()
"""
    )


def test_sums_of_losses_give_the_gradient_of_the_sum():
    setup = SETUP.replace("shuffle=False", 'shuffle=False, reduction="sum", tail="keep"')
    check(
        setup.replace("TensorDataset(x, y)", "TensorDataset(x[:43], y[:43])")
        + """
for step in data:
    for a, b in step:
        F.cross_entropy(model(a), b, reduction="sum").backward()
    low, high = step.first, step.first + step.count
    loss = F.cross_entropy(model(x[low:high]), y[low:high], reduction="sum")
    expected = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.allclose(p.grad, w, atol=1e-5) for p, w in zip(model.parameters(), expected)), step.index
    opt.zero_grad()
"""
    )


def test_dcgan_s_order_of_zero_grads_is_accepted():
    """The generator's pass leaves gradients on the discriminator, which has used its own: the next step zeroes them."""
    check("""
    make, judge = nn.Linear(2, 6), nn.Linear(6, 1)
    to_make, to_judge = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (make, judge))
    job.share(make=make, judge=judge, to_make=to_make, to_judge=to_judge)
    for step in job.loader(TensorDataset(x, y), batch_size=16):
        judge.zero_grad()
        for a, b in step:
            judge(a).mean().backward()
            judge(make(torch.randn(len(a), 2)).detach()).mean().neg().backward()
        to_judge.step()
        make.zero_grad()
        for a, b in step:
            judge(make(torch.randn(len(a), 2))).mean().backward()
        to_make.step()
    """)


LOOP = (
    SETUP
    + """
for step in data:
    {before}
    for a, b in step:
        {inside}
        loss_of(a, b).backward()
        {end}
    {after}
"""
)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"after": "opt.step()"}, ["optimizer.zero_grad()", "after `optimizer.step()`"]),
        ({"inside": "opt.zero_grad()", "after": "opt.step()"}, ["outside the loop over the slices"]),
        ({"end": "opt.step(); opt.zero_grad()"}, ["SGD.step() was called inside the loop over the slices"]),
        ({"end": "nn.utils.clip_grad_norm_(model.parameters(), 0.1)"}, ["changed inside the loop", "after the loop"]),
        ({"after": "opt.step(lambda: loss_of(a, b))"}, ["SGD.step(closure)"]),
        ({"after": "torch.optim.LBFGS(model.parameters()).step(lambda: loss_of(a, b))"}, ["LBFGS.step(closure)"]),
        ({"after": "loss_of(a, b).backward()"}, ["backward was called outside the loop"]),
        ({"after": "torch.optim.SGD(model.parameters(), lr=1).step()"}, ["(SGD) steps shared parameters and is not shared itself"]),
    ],
)
def test_slips_are_refused_before_they_spoil_a_step(places, words):
    refused(LOOP.format(**{"before": "pass", "inside": "pass", "end": "pass", "after": "pass", **places}), *words)


HIDDEN = """
net = nn.RNN(6, 4, batch_first=True)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
job.share(net=net, optimizer=opt)
{first}
for step in job.loader(TensorDataset(x.view(64, 1, 6), y), batch_size=16):
    for a, b in step:
        {body}
        out.square().mean().backward()
    opt.step()
    opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("first", "body"),
    [
        ("hidden = None", "out, hidden = net(a, hidden); hidden = hidden.detach()"),
        ("hidden = torch.zeros(1, 2, 4)", "hidden = hidden.detach(); out, hidden = net(a, hidden)"),
    ],
)
def test_a_state_that_is_carried_from_slice_to_slice_is_refused(tmp_path, monkeypatch, first, body):
    """From a file: the variables are found in the source."""
    import linecache

    from test_plain_python import HEAD

    text = HEAD + HIDDEN.format(first=first, body=body.replace("; ", "\n        "))
    linecache.cache["script.py"] = (len(text), None, text.splitlines(keepends=True), "script.py")
    refused(HIDDEN.format(first=first, body=body.replace("; ", "\n        ")), "`hidden` is carried from slice to slice")


def test_slices_that_draw_from_a_generator_of_the_script_s_own_are_refused():
    refused(
        LOOP.format(before="pass", inside="a = a + torch.randn(a.shape, generator=g)", end="pass", after="pass"),
        "draw from `g`",
        "Generator",
    )


def test_a_lazy_module_is_refused_until_it_has_its_shapes():
    refused(
        """
    model = nn.LazyLinear(3)
    job.share(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    next(iter(job.loader(TensorDataset(x, y), batch_size=16)))
    """,
        "lazy parameters",
        "before job.share",
    )


def test_plain_values_are_shared_as_they_are():
    check("""
    best = {"loss": float("inf"), "bad": 0, "weights": torch.zeros(3)}
    model = nn.Linear(6, 3)
    job.share(model=model, best=best)
    before = job.digest()
    best["bad"] += 1
    changed = job.digest()
    job.state.patience = 3
    assert len({before, changed, job.digest()}) == 3 and job.state.patience == 3 and "patience" in job.state
    """)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("job.share(best={'run': object()})", ["best.run", "object"]),
        ("job.share(best=0.5)", ["float", "job.state.best = …"]),
        ("job.state.when = object()", ["job.state.when is a", "plain values"]),
        (
            "model = nn.Linear(6, 3); job.share(model=model); job.state.best = model.state_dict()",
            ["job.state.best holds the tensors of `model` themselves", "copy.deepcopy(model.state_dict())"],
        ),
        (
            """
     model, best = nn.Linear(6, 3), {}
     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
     job.share(model=model, optimizer=optimizer, best=best)
     for step in job.loader(TensorDataset(x, y), batch_size=16):
         for a, b in step: F.cross_entropy(model(a), b).backward()
         optimizer.step(); optimizer.zero_grad()
         best["weights"] = model.state_dict()
     """,
            ["best holds the tensors of `model` themselves"],
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_with_the_fix(body, words):
    from test_plain_python import run

    done = run(body)
    assert done.returncode != 0
    assert all(word in done.stderr for word in words), done.stderr
