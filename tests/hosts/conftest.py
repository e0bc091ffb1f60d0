from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.hosts.cluster import Cluster, Job, cluster, unavailable


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four hosts and three etcd members, for all tests of this folder."""
    why = unavailable()
    if why:
        pytest.skip(why)
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
