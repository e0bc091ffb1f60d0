"""Who may import whom is a contract in pyproject.toml; here it is a test, and so is the weight of an import."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINT = Path(sys.executable).with_name("lint-imports")


def _lint(root: Path) -> subprocess.CompletedProcess[str]:
    # import-linter finds the package through sys.path, and the folder it is started in comes first there.
    return subprocess.run(
        [str(LINT), "--config", str(root / "pyproject.toml"), "--no-cache"],
        cwd=root / "src",
        capture_output=True,
        text=True,
        timeout=240,
    )


def _loads(statement: str, module: str) -> bool:
    code = f"import sys\n{statement}\nprint({module!r} in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()[-1] == "True"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its contract in another folder, to be spoiled."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    return tmp_path


def test_the_rooms_import_only_what_lies_below_them() -> None:
    result = _lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("core", "import stretto.cli"),
        ("scheduling", "import stretto.membership"),
        ("membership", "import torch"),
    ],
)
def test_an_import_from_a_lower_room_into_a_higher_one_is_caught(copy: Path, room: str, line: str) -> None:
    (copy / "src" / "stretto" / room / "trespass.py").write_text(f"{line}\n")
    result = _lint(copy)
    assert result.returncode != 0, result.stdout
    assert f"stretto.{room}" in result.stdout, result.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "import stretto.core.roster, stretto.core.slices, stretto.core.errors",
        "import stretto.membership.member_state, stretto.membership.stores.store",
        "import stretto.cli.main",
    ],
)
def test_what_trains_nothing_loads_no_torch(statement: str) -> None:
    assert not _loads(statement, "torch")


def test_the_probe_for_torch_can_see_it() -> None:
    assert _loads("import torch", "torch")


def test_help_loads_no_torch() -> None:
    code = (
        "import sys\nsys.argv = ['stretto', '--help']\nimport stretto.cli.main as m\n"
        "try:\n    m.main()\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert "Usage" in run.stdout
    assert run.stdout.split()[-1] == "False"
