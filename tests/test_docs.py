"""What the documentation names exists (files, targets, verbs, flags of `stretto run`), its tables are complete, its scripts run."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pydoc
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from script_errors import ELSEWHERE, Raised, raised, samplers

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
CODE = re.compile(r"```.*?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
WORDS = {"is", "needs", "and", "alone", "adds", "writes", "then", "gives", "spreads"}
"""What may follow the name of the project in a sentence."""


def _code(page: Path) -> str:
    """The page's code, in lines and in words: what readers will type."""
    return "\n".join("".join(pair) for pair in CODE.findall(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    missing = [target for target, _ in LINK.findall(CODE.sub("", page.read_text())) if not (page.parent / target).exists()]
    assert not missing


def _missing_files(text: str) -> list[str]:
    """What a page names as a file or a folder of the tree and is none."""
    named = re.findall(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|tsx?|md|toml))?)`", text)
    ours = [path for path in named if path.split("/")[0] in TREE]
    return [path for path in ours if not any((base / path).exists() for base in (ROOT, ROOT / "src" / "stretto"))]


TREE = {path.name for base in (ROOT, ROOT / "src" / "stretto") for path in base.iterdir() if path.is_dir()} - {"runs"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_the_tree_that_a_page_names_exists(page: Path) -> None:
    assert not _missing_files(page.read_text())


def test_a_file_that_does_not_exist_is_noticed() -> None:
    """The control."""
    assert _missing_files("`train/reduce/sums.py` `train/reduce/gone.py` `gone/` `train/gone/`") == [
        "train/reduce/gone.py",
        "train/gone/",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for line in re.findall(r"^\s*make ([a-z -]+)", _code(page), re.MULTILINE) for word in line.split()}
    assert named <= targets | {"bench-"}, named - targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_verb_exists(page: Path) -> None:
    from stretto.cli.verbs import VERBS

    named = set(re.findall(r"^(?:\$ )?stretto ([a-z]+)", _code(page), re.MULTILINE))
    assert named - WORDS <= set(VERBS), named - set(VERBS)


def test_every_flag_of_run_that_is_documented_exists() -> None:
    text = "\n".join(_code(page) for page in PAGES)
    lines = [line.split(".py")[0] for line in re.findall(r"stretto run ([^\n]*)", text)]  # what follows the script is its own
    named = {flag for line in lines for flag in re.findall(r"(?<!\S)--[a-z-]+", line)}
    run = subprocess.run(
        [sys.executable, "-m", "stretto.cli.main", "run", "--help"],
        capture_output=True,
        text=True,
        timeout=240,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
        cwd=ROOT,
    )
    known = set(re.findall(r"--[a-z-]+", run.stdout))
    assert named <= known, named - known


def test_the_readme_begins_with_one_sentence_and_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines[0] == "# stretto"
    assert lines[2].endswith(".")
    assert lines[4] == "```"
    assert lines[7] == "```"


# ---- docs/guides/troubleshooting.md: every refusal is in its table


def _phrases() -> list[str]:
    """What the table quotes, of the messages that scripts raise: the code in the first cell of each row."""
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
    part = page.split("## Refusals and cures")[1].split("### Before a worker is admitted")[0]
    cells = [line.split(" | ")[0] for line in part.splitlines() if line.startswith("| `")]
    return [phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell)]


def _refusals() -> list[Raised]:
    return raised(ROOT / "src/stretto/train", ROOT / "src/stretto/batching")


def _unexplained(refusals: list[Raised], phrases: list[str]) -> list[str]:
    missing = [f"{one.place}: {text}" for one in refusals for text in one.texts if not any(phrase in text for phrase in phrases)]
    return missing + [f"{one.place}: {one.argument}" for one in refusals if not one.texts and one.argument not in ELSEWHERE]


def test_every_refusal_of_a_script_is_in_the_table_of_cures() -> None:
    assert len(_refusals()) > 100
    assert not _unexplained(_refusals(), _phrases())
    assert not [text for text in samplers() if not any(phrase in text for phrase in _phrases())]


def test_a_refusal_that_is_not_in_the_table_is_noticed(tmp_path: Path) -> None:
    """The control: a new error, one whose text is made elsewhere, and a row that was taken out."""
    (tmp_path / "new.py").write_text(
        'def check(x):\n    raise ScriptError(f"nobody has ever thought of {x}")\ndef other(x):\n    raise ScriptError(x.words)\n'
    )
    assert _unexplained(raised(tmp_path), _phrases()) == ["new.py:2: nobody has ever thought of …", "new.py:4: x.words"]
    assert _unexplained(_refusals(), [phrase for phrase in _phrases() if phrase != "was left early"][1:])


def test_the_table_of_cures_has_no_row_that_nothing_raises() -> None:
    texts = [text for one in _refusals() for text in one.texts] + samplers()
    assert not [phrase for phrase in _phrases() if not any(phrase in text for text in texts)]


# ---- scripts in the pages run

SETUP = """
import torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.manual_seed(1)
x = torch.randn(256, 6)
dataset = train_set = val_set = TensorDataset(x, (x[:, 0] > 0).long())
Net = lambda: torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
"""
BEGINNINGS = {
    "batching.md": "import stretto\njob = stretto.join()\nmodel = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
    "restart-mode.md": "training = False\n",
}
"""What the blocks of a page take as given."""
TESTED = ("guides/evaluation.md", "guides/own-cluster.md", "guides/own-policy.md")
OTHERS = {Path("docs") / page for page in TESTED} | {page.relative_to(ROOT) for page in (ROOT / "docs/tutorials").glob("*.md")}
"""Pages with tests of their own."""
DIFF = re.compile(r"```diff\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def _scripts() -> Iterator[tuple[str, str]]:
    for name in ("README.md", "docs/guides/porting.md"):
        for number, diff in enumerate(DIFF.findall((ROOT / name).read_text())):
            for sign, other, when in (("-", "+", "before"), ("+", "-", "after")):
                lines = [line[1:] for line in diff.splitlines() if not line.startswith(other)]
                assert all(line[:1] in (sign, other, " ", "") for line in diff.splitlines()), diff
                yield f"{name} {number} {when}", "\n".join(lines)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for number, block in enumerate(PYTHON.findall(page.read_text()) if page.relative_to(ROOT) not in OTHERS else ()):
            yield f"docs/{page.name} {number}", BEGINNINGS.get(page.name, "") + block


RUN = """
import json, sys, traceback
from stretto.train.entry import join
failed = {}
for name, path in json.load(sys.stdin):
    held = {"__name__": "__main__"}
    try:
        exec(compile(open(path).read(), path, "exec"), held)
        assert "job.epochs(" not in open(path).read() or held["job"].step > 4, "nothing was trained"
    except BaseException:
        failed[name] = traceback.format_exc()
    if join.current() is not None:
        join.current().close()
print(json.dumps(failed))
"""


def test_scripts_in_the_pages_run(tmp_path: Path) -> None:
    """Both sides of every diff and all blocks of Python, one after the other; and one that must fail: a loop without zero_grad."""
    scripts = dict(_scripts())
    assert len(scripts) >= 14
    scripts["control"] = scripts["docs/guides/porting.md 0 after"].replace("optimizer.zero_grad()", "pass")
    paths = []
    for number, (name, text) in enumerate(scripts.items()):
        (tmp_path / f"{number}.py").write_text(SETUP + text)
        paths.append((name, str(tmp_path / f"{number}.py")))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(paths),
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env={**os.environ, **alone},
    )
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert "add `optimizer.zero_grad()`" in failed.pop("control")
    assert not failed, "\n".join(failed.values())


# ---- docs/reference/python.md: every public attribute, and no other

INTERNAL = {
    "job": set[str](),
    "loader": {
        "batch",
        "begin_sweep",
        "changes",
        "check_open",
        "close",
        "consumed",
        "end_sweep",
        "fetch",
        "metric_states",
        "next_count",
        "position",
        "repeat",
        "request",
        "restore",
        "runner",
        "source",
        "sweeps",
        "to_dict",
    },
    "step": {
        "begin_pass",
        "check_finished",
        "drain",
        "enter_slice",
        "finish_pass",
        "leave_slice",
        "opened",
        "order",
        "over",
        "pack",
        "parts",
        "passes",
        "rows",
        "slice",
        "tally",
        "units",
    },
    "client": set[str](),
}
"""What parts of the library use of each other without an underscore. A new attribute goes here or onto the page."""


def _classes() -> dict[str, type]:
    import stretto
    from stretto.train.data.loader import Loader
    from stretto.train.data.step import Step

    return {"job": stretto.Job, "loader": Loader, "step": Step, "client": stretto.Client}


def _attributes(kind: type) -> set[str]:
    """Names of a class and of its instances that have no underscore."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return {name for name in own | set(dir(kind)) if not name.startswith("_")}


@pytest.mark.parametrize("word", INTERNAL)
def test_the_api_page_names_every_public_attribute_and_no_other(word: str) -> None:
    part = (ROOT / "docs/reference/python.md").read_text().split("\n## stretto\n")[1]
    cells = [line.split(" | ")[0] for line in part.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(rf"`{word}\.(\w+)", cell)}
    public = _attributes(_classes()[word]) - INTERNAL[word]
    assert named == public, named ^ public
    assert INTERNAL[word] <= _attributes(_classes()[word]), "no longer there"


@pytest.mark.parametrize("word", ["job", "loader", "step"])
def test_help_shows_every_public_attribute(word: str) -> None:
    kind = _classes()[word]
    text = pydoc.plain(pydoc.render_doc(kind))
    shown = {name for line in re.findall(r"^ \|  (\w+(?:, \w+)*)", text, re.MULTILINE) for name in line.split(", ")}
    assert not _attributes(kind) - INTERNAL[word] - shown
    assert not {name for name in dir(kind) if not name.startswith("_") and not inspect.getdoc(getattr(kind, name))} - INTERNAL[word]


def test_the_api_page_has_all_public_names_and_their_arguments() -> None:
    import stretto

    text = (ROOT / "docs/reference/python.md").read_text()
    assert {name for name in stretto.__all__ if f"`stretto.{name}" not in text} == set()
    for name in ("PerWorker", "Adaptive", "AdaScale", "LinearScale", "SqrtScale", "LEGW"):
        given = re.search(rf"`{name}\(([^)]*)\)`", text)
        assert given is not None, name
        named = re.findall(r"[a-z_]{2,}", re.sub(r"=\w+", "", given[1]))
        assert named == list(inspect.signature(getattr(stretto, name)).parameters)
    table = text.split("| argument |")[1].split("\n\n")[0]
    known = [name for name in inspect.signature(stretto.Job.loader).parameters if name not in ("self", "positional", "others")]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == known
