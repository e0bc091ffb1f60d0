"""The public names, in full: what is not here may change without notice."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import stretto

NAMES = {
    # a worker and its job
    "join": "function",
    "Job": "class",
    # how the batch follows the workers
    "Adaptive": "class",
    "PerWorker": "class",
    # how the learning rate follows the batch
    "AdaScale": "class",
    "LEGW": "class",
    "LinearScale": "class",
    "SqrtScale": "class",
    # scripts with a save and a load of their own
    "on_load": "function",
    "on_save": "function",
    "should_stop": "function",
    # the job server
    "Client": "class",
    # everything that is raised on purpose
    "StrettoError": "class",
}


def test_the_public_names_are_these_and_at_most_twenty() -> None:
    assert set(stretto.__all__) == set(NAMES)
    assert len(stretto.__all__) <= 20
    assert set(dir(stretto)) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_and_says_what_it_is_for(name: str) -> None:
    thing = getattr(stretto, name)
    assert inspect.isclass(thing) if NAMES[name] == "class" else inspect.isfunction(thing)
    assert inspect.getdoc(thing), f"stretto.{name} has no docstring"


@pytest.mark.parametrize("name", [name for name, kind in NAMES.items() if kind == "function"])
def test_public_functions_are_keyword_only_after_the_first_argument(name: str) -> None:
    parameters = list(inspect.signature(getattr(stretto, name)).parameters.values())
    assert all(one.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters[1:])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        stretto.nonsense  # noqa: B018


def test_importing_the_package_alone_loads_no_torch() -> None:
    code = "import sys, stretto; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert run.stdout.strip() == "False", run.stderr
