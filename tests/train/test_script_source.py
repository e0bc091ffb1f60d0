"""Which variables of a script decide what is trained: those that are worth comparing, and none of those that people only print."""

from __future__ import annotations

import linecache
import os
import textwrap
from typing import Any

import pytest

import stretto
from stretto.train.script_checks import dataflow, source_analysis, variables

LOOP = """
def main():
    {top}
    for epoch in job.epochs(3):
        {epoch}
        for {step} in {data}:
            for x, y in step:
                loss = {loss}
                loss.backward()
                {slice}
            {after}
        {end}
"""


def source(**parts: str) -> str:
    given = {
        "top": "pass",
        "epoch": "pass",
        "step": "step",
        "data": "data",
        "loss": "f(model(x), y)",
        "slice": "pass",
        "after": "optimizer.step()",
        "end": "pass",
        **parts,
    }
    lines = []
    for line in LOOP.splitlines():
        name = line.strip().strip("{}")
        inside = given.get(name) if line.strip() == f"{{{name}}}" else None
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(textwrap.indent(textwrap.dedent(inside), indent) if inside is not None else line.format(**given))
    return "\n".join(lines)


@pytest.fixture
def deciding():
    for function in (source_analysis.parse, source_analysis.deciding, source_analysis.counters, source_analysis.tested_objects):
        function.cache_clear()

    def read(**parts: str) -> tuple[set[str], set[str], set[str]]:
        path = f"<{parts}>"
        text = source(**parts)
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        return (
            {name for name, _ in source_analysis.deciding(path)},
            {name for name, _ in source_analysis.counters(path)},
            set(source_analysis.tested_objects(path)),
        )

    return read


EARLY = "val = evaluate()\nif val < best:\n    best, bad = val, 0\nelse:\n    bad += 1\nif bad >= 3:\n    break"


VALIDATE = "def validate():\n    for step in val:\n        for x, y in step:\n            score(x, y)\ncount = 0"
EVERY = "optimizer.step()\ncount += 1\nif count % 5 == 0:\n    "


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"top": VALIDATE, "after": f"{EVERY}validate()"}, {"count"}),
        ({"top": f"{VALIDATE}\ndef report():\n    print(validate())", "after": f"{EVERY}report()"}, {"count"}),
        (
            {"top": "count = 0", "after": f"{EVERY}for batch in val:\n        for x, y in batch:\n            score(x, y)"},
            {"count"},
        ),
        ({"top": "best, bad = 9, 0", "end": EARLY}, {"best", "bad"}),
        ({"top": "micro = 0", "after": "micro += 1\nif micro % 2 == 0:\n    optimizer.step()"}, {"micro"}),
        ({"top": "losses = []", "end": "losses.append(evaluate())\nif len(losses) > 2:\n    break"}, {"losses"}),
        ({"top": "strength = 0.1", "loss": "f(model(x), y, strength)", "end": "strength = 0.1 * rand()"}, {"strength"}),
        ({"top": "lr = 0.1", "end": "lr *= 0.9\nfor group in optimizer.param_groups:\n    group['lr'] = lr"}, {"lr"}),
        ({"top": "bad = 0", "end": "bad += 1\nif bad > 3:\n    model.drop.p = 0.1"}, {"bad"}),
    ],
)
def test_variables_that_decide_what_is_trained_are_found(deciding, parts, names):
    assert names <= deciding(**parts)[0]


@pytest.mark.parametrize(
    "parts",
    [
        {"top": "total = 0.0", "slice": "total += loss.item()", "end": "print(total)"},
        {"epoch": "total, n = 0.0, 0", "slice": "total += loss.item()\nn += 1", "end": "print(total / n)"},
        {"top": "history = []", "end": "history.append(evaluate())"},
        {
            "top": "running = 0.0",
            "slice": "running = 0.9 * running + 0.1 * loss.item()",
            "after": "optimizer.step()\nbar.set_postfix(loss=running)",
        },
        {"step": "i, step", "data": "enumerate(data)", "after": "optimizer.step()\nif i % 10 == 0:\n    print(i)"},
        {"slice": "for name, p in model.named_parameters():\n    print(name, p.norm())"},
        {"top": "def show():\n    for name in parts:\n        print(name)\nn = 0", "after": "n += 1\nif n % 5 == 0:\n    show()"},
        {
            "top": "best = 0",
            "end": "acc = evaluate()\nif acc > best:\n    best = acc\n    torch.save(model.state_dict(), 'best.pt')",
        },
    ],
)
def test_variables_that_are_only_shown_or_kept_are_not(deciding, parts):
    names, counters, _ = deciding(**parts)
    assert not names & {"total", "n", "history", "running", "i", "p", "name", "best"}
    assert not counters


def test_counters_of_enumerate_and_objects_that_decide_are_found(deciding):
    guarded = "if i % 2:\n    optimizer.step()"
    assert deciding(step="i, step", data="enumerate(data)", after=guarded)[1] == {"i"}
    stopped = "stopping(evaluate())\nif stopping.early_stop:\n    break"
    assert "stopping" in deciding(top="stopping = EarlyStopping()", end=stopped)[2]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("out, hidden = net(x, hidden)\nhidden = hidden.detach()", ["hidden"]),
        ("hidden = zeros()\nout, hidden = net(x, hidden)", []),
        ("for name, p in named:\n    loss = loss_of(p)", []),
        ("with amp():\n    for p in ps:\n        reg = p.sum()", []),
        ("total += loss", []),
        ("if index % 4 == 0:\n    slope = grad(x)\n    loss = loss_of(slope)", []),
        ("if index % 4 == 0:\n    loss = loss_of(slope)\n    slope = grad(x)", ["slope"]),
        ("if x is None:\n    continue\nelse:\n    out = net(x)\nuse(out)", []),
    ],
)
def test_what_a_loop_over_slices_carries_is_found(body, names):
    path = f"<{body}>"
    text = "for x in step:\n" + textwrap.indent(body, "    ")
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    assert source_analysis.carried_at(path, 1) == names


def test_a_script_beside_the_package_is_a_script() -> None:
    """Its folder's name may begin with the package's: what looks like the library is not looked at."""
    package = os.path.dirname(os.path.abspath(str(stretto.__file__)))
    frames: dict[str, Any] = {}
    for path in (f"{package}-experiments/train.py", f"{package}/train/here.py"):
        exec(
            compile("found = [frame.f_code.co_filename for frame in look()]", path, "exec"),
            frames.setdefault(path, {"look": variables.script_frames}),
        )
    first, second = frames
    assert first in frames[first]["found"] and second not in frames[second]["found"]


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"loss": "f(model(x), target(x))", "after": "for a, b in pairs(target, model):\n    a.lerp_(b, 0.1)"}, {"target"}),
        ({"after": "for a, b in pairs(average, model):\n    a.data = b.data"}, {"average"}),
        ({"after": "if step.index % 8 == 0:\n    target.load_state_dict(model.state_dict())"}, {"target"}),
        ({"loss": "(f(model(x), y) * weights[y]).sum()", "after": "weights[step.gathered['y']] = 0"}, {"weights"}),
        ({"loss": "f(model(x), y) * beta", "epoch": "beta = g(epoch)"}, {"beta"}),
        ({"after": "norms.append(norm)\nclip_grad_norm_(model.parameters(), np.percentile(norms, 10))"}, {"norms"}),
    ],
)
def test_what_the_loop_over_the_steps_trains_with_is_found(parts, names):
    assert names <= taken(source(**parts))


def test_what_decides_through_other_variables_and_in_functions_is_found():
    text = source(loss="loss_of(x, beta)").replace("            for x", "            beta = anneal(count)\n            for x")
    assert {"count", "self.level"} <= taken(text + "\ndef loss_of(x, beta):\n    return f(x) * beta * self.level\n")


@pytest.mark.parametrize(
    "parts",
    [
        {"slice": "if verbose:\n    print(loss)"},
        {"slice": "confusion[y] += 1", "after": "optimizer.step()\nprint(confusion.sum())"},
        {"slice": "step.log(loss=loss, scale=scale)"},
        {"after": "optimizer.step()\nmean = sum(window) / len(window)\nbar.set_postfix(mean=mean)"},
        {"loss": "f(model(noise.normal_()), y)"},
        {"epoch": "started = time()", "after": "optimizer.step()\nspent = time() - started"},
    ],
)
def test_what_it_only_shows_is_not(parts):
    assert not taken(source(**parts)) & {"verbose", "confusion", "scale", "window", "started", "noise"}


def taken(text: str) -> set[str]:
    path = f"<{text}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "for step in data" in line)
    return set(dataflow.inputs(path, line))


def test_an_object_that_only_keeps_what_slices_give_it_is_not_trained_with():
    kept = {"slice": "meter.add(loss.item(), len(x))", "end": "print(meter.average)"}
    assert "meter" not in taken(source(top="meter = Meter()", **kept))
    assert "beta" in taken(source(top="beta = Annealer()", loss="f(model(x), y) * beta()", **kept)), "a control"


def test_no_file_of_the_package_counts_as_the_script() -> None:
    """The agent's and the command's frames are below every script's: their variables decide nothing."""
    assert stretto.__file__ is not None
    for module in ("cli/main.py", "agent/workers/zygote.py", "train/job.py", "batching/lr_rules.py"):
        assert os.path.join(os.path.dirname(stretto.__file__), module).startswith(variables.LIBRARIES), module
