"""A failed test shows what the processes that it ran have written: `check=True` hides it, and an exit code explains nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator
from typing import Any

import pytest

SHOWN = 20_000
"""Characters of each stream, from its end."""

Ran = subprocess.CompletedProcess | subprocess.CalledProcessError | subprocess.TimeoutExpired


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.failed and call.excinfo is not None:
        report.sections += [section for ran in _processes(call.excinfo) for section in _streams(ran)]


def _processes(failure: pytest.ExceptionInfo[BaseException]) -> list[Any]:
    """The process that raised, and those that the failing frames still hold."""
    held = [failure.value, *(value for entry in failure.traceback for value in entry.frame.f_locals.values())]
    return list({id(one): one for one in held if isinstance(one, Ran)}.values())


def _streams(ran: Any) -> Iterator[tuple[str, str]]:
    command = ran.args if isinstance(ran, subprocess.CompletedProcess) else ran.cmd
    told = command if isinstance(command, str) else " ".join(map(str, command))
    ended = f"exit code {ran.returncode}" if hasattr(ran, "returncode") else "did not end"
    for name, written in (("stdout", ran.stdout), ("stderr", ran.stderr)):
        text = written.decode(errors="replace") if isinstance(written, bytes) else written
        if text:
            yield f"{name} of `{told[:300]}` ({ended})", text[-SHOWN:]
