"""Without etcd: the first agent serves the store. What it is needed for is changes; training goes on without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hosts.cluster import Cluster, Job, paced

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]
SECRET = {"STRETTO_STORE_TOKEN": "0123456789abcdef0123456789abcdef"}


def by_tcp(one: Job, host: str = "h1") -> Job:
    one.store = f"tcp://{one.cluster.network.hosts[host].address}:7070"
    return one


def test_two_hosts_share_the_store_of_the_first(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = by_tcp(job())
    one.start("h2", "--slots", "1", env=SECRET)  # before the one that serves: it waits a moment
    one.start("h1", "--slots", "1", env=SECRET)
    one.until_workers(2)
    assert one.finish() == hosts.reference(one)
    assert one.audit().returncode == 0, one.audit().stdout


def test_training_goes_on_to_its_end_without_the_host_that_served_the_store(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = by_tcp(job(paced(epochs=60)))
    served = one.start("h1", "--slots", "0", env=SECRET)
    one.start("h2", "--slots", "1", "--grace", "3", env=SECRET)
    one.start("h3", "--slots", "1", "--grace", "3", env=SECRET)
    one.until_workers(2)
    served.host.kill()
    assert one.finish(lost=[served]) == hosts.reference(one)


def test_the_wrong_secret_is_refused_and_none_is_asked_for(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = by_tcp(job(paced(epochs=2000)))
    one.start("h1", "--slots", "1", env=SECRET)
    one.until_step(1)
    wrong = one.start("h2", env={"STRETTO_STORE_TOKEN": "f" * 32})
    assert wrong.end() == 2
    assert "does not know this job's token" in wrong.output
    none = one.start("h3")
    assert none.end() == 2
    assert "--store-token" in none.output
