from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.cluster import Cluster, Job, cluster, unavailable

os.environ["PATH"] += ":/usr/sbin:/sbin"  # where Debian has what root uses

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Looks once, and only where tests with namespaces are to be run, so that the reason is told once a file."""
    mine = [item for item in items if HERE in item.path.parents and item.get_closest_marker("hosts")]
    why = unavailable() if mine else ""
    for item in mine if why else ():
        item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four hosts and three etcd members, for all tests of this folder. Whoever ends the tests with a signal finds nothing left."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with cluster(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def job(hosts: Cluster) -> Iterator[Callable[..., Job]]:
    """`job(text)` is a job that nobody has started yet. Everything on the hosts is killed after the test."""
    made: list[Job] = []

    def make(text: str | None = None, **options: Any) -> Job:
        made.append(hosts.job(text, **options))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.stop()
        hosts.restore()
