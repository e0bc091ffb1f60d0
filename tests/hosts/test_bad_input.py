"""Mistakes with several hosts: a clear error within seconds that names the host and the fix."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.hosts.cluster import Agent, Cluster, Job, paced

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]


def refused(agent: Agent) -> str:
    assert agent.end() == 2, agent.output
    assert "Traceback" not in agent.output
    return agent.output


def test_a_store_that_cannot_be_reached_is_named_within_seconds(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job()
    one.store = "etcd://10.77.0.1:1,10.77.0.200:2379"
    began = time.monotonic()
    text = refused(one.start("h1"))
    assert "cannot be reached" in text and "10.77.0" in text
    assert time.monotonic() - began < 60, "only against hanging"


@pytest.mark.parametrize("store", ["redis://h1:1", "etcd://", "tcp://h1", "tcp://h1:0", "tcp://a:1,b:2", "etcd://h1:port"])
def test_a_store_that_is_none_is_refused(hosts: Cluster, job: Callable[..., Job], store: str) -> None:
    one = job()
    one.store = store
    assert "--store" in refused(one.start("h1", env={"STRETTO_STORE_TOKEN": "x" * 32}))


def test_a_host_with_another_script_or_other_arguments_is_refused_with_its_name(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=2000))
    one.start("h1", "--slots", "1")
    one.until_step(1)
    other = one.folder / "other.py"
    other.write_text(paced(epochs=1999))
    text = refused(one.start("h2", script=other))
    assert "host h2" in text and "another script" in text and "begun by host h1" in text
    one.args = ["--more"]
    assert "other arguments" in refused(one.start("h3"))
    one.args = []
    assert "another --workers" in refused(one.start("h4", workers="1:7"))


def test_a_host_without_a_route_is_told_so(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job()
    one.store = "etcd://10.99.0.1:2379"
    text = refused(one.start("h1"))
    assert "no route" in text or "cannot be reached" in text


def test_an_address_that_is_not_this_hosts_is_refused(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job()
    text = refused(one.start("h1", "--interface", "10.77.0.2"))
    assert "does not have this address" in text and "eth0 (10.77.0.1)" in text
    assert "no interface" in refused(one.start("h1", "--interface", "nonesuch0"))


def test_a_host_that_the_others_cannot_connect_to_is_refused(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=2000))
    one.start("h1", "--slots", "1")
    one.until_step(1)
    # As behind NAT: it reaches everybody, but nobody can begin a connection to it.
    hosts.network.hosts["h2"].run("iptables", "-A", "INPUT", "-p", "tcp", "--syn", "-j", "DROP")
    text = refused(one.start("h2", "--slots", "1"))
    assert "host h1 cannot" in text and "NAT" in text and "--interface" in text


def test_a_late_host_of_a_finished_job_is_told_so_and_another_script_may_use_the_name(
    hosts: Cluster, job: Callable[..., Job]
) -> None:
    one = job(paced(epochs=3))
    one.start("h1", "--slots", "1")
    digest = one.finish()
    text = refused(one.start("h2", "--slots", "1"))
    assert "has just finished" in text and digest in text
    again = job(paced(epochs=4), name=one.name)
    again.start("h2", "--slots", "1")
    assert again.finish() == hosts.reference(again)


def test_a_name_whose_agents_are_all_dead_is_begun_anew(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=2000))
    first = one.start("h1", "--slots", "1")
    one.until_step(3)
    first.host.kill()
    again = job(paced(epochs=5), name=one.name)
    again.start("h2", "--slots", "1")
    assert again.finish() == hosts.reference(again)
