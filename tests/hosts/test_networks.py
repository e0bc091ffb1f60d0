"""Networks that break: exactly one side goes on, and the digest at the end is that of one process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.hosts import delayed_link
from tests.hosts.cluster import Cluster, Job, paced

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]
OUTAGE_S = float(os.environ.get("STRETTO_HOSTS_OUTAGE_S", "10"))


def one_history(job: Job) -> bool:
    """No two hosts have committed one step in different rosters, unless the later one tells what the earlier had done."""
    found: dict[int, set[tuple[int, int]]] = {}
    for one in job.records():
        if type(one).__name__ == "Commit":
            found.setdefault(one.step, set()).add((one.roster, one.tick))  # type: ignore[union-attr]
    return all(len({tick for _, tick in told}) == 1 for told in found.values())


def test_a_pulled_cable_costs_the_others_a_lease_and_the_host_comes_back(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=150))
    agents = {host: one.start(host, "--slots", "1") for host in ("h1", "h2", "h3")}
    one.until_workers(3)
    leader = one.leader()
    cut = next(agent for agent in agents.values() if agent is not leader)
    cut.host.pull()
    one.until_workers(2)
    one.until_more(5)
    cut.host.plug()
    one.until_workers(3)
    assert one.finish() == hosts.reference(one)
    assert one_history(one)
    assert one.audit().returncode == 0, one.audit().stdout


def test_the_leaders_cable_is_pulled(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=150))
    for host in ("h1", "h2", "h3"):
        one.start(host, "--slots", "1")
    one.until_workers(3)
    leader = one.leader()
    leader.host.pull()
    one.until_workers(2)
    one.until_more(3)
    assert one.leader() is not leader
    leader.host.plug()
    one.until_workers(3)
    assert one.finish() == hosts.reference(one)
    assert one_history(one)


def test_in_two_halves_only_the_one_with_the_stores_majority_goes_on(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=200))
    for host in ("h1", "h2", "h3"):
        one.start(host, "--slots", "1")
    one.until_workers(3)
    hosts.network.part(hosts.hosts("h1", "e1"), hosts.hosts("h2", "h3", "h4", "e2", "e3"))
    small = next(agent for agent in one.agents if agent.host.name == "h1")
    one.until_workers(2)
    before = len([record for record in small.records() if type(record).__name__ == "Commit"])
    one.until_more(10)
    after = len([record for record in small.records() if type(record).__name__ == "Commit"])
    assert after == before, "the minority has committed"
    hosts.network.heal()
    one.until_workers(3)
    assert one.finish() == hosts.reference(one)
    assert one_history(one)
    assert one.audit().returncode == 0, one.audit().stdout


def test_packets_that_get_lost_in_one_direction_only(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=150))
    for host in ("h1", "h2", "h3"):
        one.start(host, "--slots", "1")
    one.until_workers(3)
    # h2 no longer hears h1, while everybody reaches the store: nobody's lease runs out, and yet the roster cannot go on.
    hosts.network.hosts["h2"].refuse(hosts.hosts("h1"))
    one.until(lambda: one.commits()[-1].workers < 3, why="a roster without one of the two")
    one.until_more(5)
    hosts.network.heal()
    assert one.finish() == hosts.reference(one)
    assert one_history(one)


@pytest.mark.long
def test_two_hosts_that_do_not_reach_each_other_for_long_cost_one_of_them_and_nobody_is_started_in_vain(
    hosts: Cluster, job: Callable[..., Job]
) -> None:
    one = job(paced(epochs=800))
    one.start("h1", "--slots", "2")
    one.until_workers(2)
    one.start("h2", "--slots", "2")
    one.until_workers(4)
    one.start("h3", "--slots", "1")  # the newest worker is not the one that has to go
    one.until_workers(5)
    h1, h2 = hosts.hosts("h1", "h2")
    h1.refuse([h2])
    h2.refuse([h1])
    one.until(lambda: any("h1 and h2 do not reach each other" in event.text for event in one.events("warning")), why="a warning")
    one.until_workers(3)
    roster, before = one.roster(), len(one.events("started"))
    assert roster is not None and {member["agent"] for member in roster.members} == {"h1", "h3"}
    listed = one.verb("h3", "ps", "--store", one.store)
    assert "h2 0/2 does not reach h1" in " ".join(listed.stdout.split()), listed.stdout
    one.until_more(200)
    assert one.events("started")[before:] == [], "workers that cannot join are started again and again"
    hosts.network.heal()
    one.until_workers(5)
    assert one.finish() == hosts.reference(one)
    assert one_history(one)
    assert one.audit().returncode == 0, one.audit().stdout


def test_one_member_of_the_store_is_lost(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=100))
    for host in ("h1", "h2"):
        one.start(host, "--slots", "1")
    one.until_workers(2)
    hosts.etcd.stop("e1")
    one.start("h3", "--slots", "1")
    one.until_workers(3)
    assert one.finish() == hosts.reference(one)
    assert not one.events("died", "broken"), "losing one member of three costs nobody anything"


def test_training_goes_on_while_the_whole_store_is_away(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=int(40 * (OUTAGE_S + 10))))
    for host in ("h1", "h2"):
        one.start(host, "--slots", "1")
    one.until_workers(2)
    hosts.etcd.stop()
    time.sleep(3.0)
    away = one.steps
    time.sleep(OUTAGE_S)
    assert one.steps > away, "training has stopped with the store"
    hosts.etcd.start()
    one.start("h3", "--slots", "1")
    one.until_workers(3)
    stopped = one.verb("h4", "stop", one.name, "--store", one.store, "--wait")
    assert stopped.returncode == 0, stopped.stderr
    assert {agent.end() for agent in one.agents} == {143}
    assert len({agent.result["digest"] for agent in one.agents}) == 1
    assert one.audit().returncode == 0, one.audit().stdout


@pytest.mark.long
def test_with_delay_jitter_and_loss_everything_takes_longer_and_the_bits_are_the_same(
    hosts: Cluster, job: Callable[..., Job]
) -> None:
    try:
        for host in ("h1", "h2", "h3"):
            hosts.network.hosts[host].slow(delay_ms=50, jitter_ms=25, loss_percent=1)  # between two hosts: 100 ± 50 ms, 2%
    except delayed_link.Refused as error:
        pytest.skip(str(error))
    one = job(paced(epochs=15))
    for host in ("h1", "h2"):
        one.start(host, "--slots", "1", "--lease", "6", workers="2:8")
    one.until_step(3)
    one.start("h3", "--slots", "1", "--lease", "6", workers="2:8")
    one.until_workers(3)
    assert one.finish() == hosts.reference(one)
    assert one_history(one)
    assert one.audit().returncode == 0, one.audit().stdout
