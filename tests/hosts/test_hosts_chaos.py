"""Random failures of hosts, cables and etcd members, one after the other; at the end one digest and whole journals.

`make test-hosts-chaos N=50` plays N schedules, `make test-hosts` one. A schedule is told by its seed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from tests.hosts.cluster import Agent, Cluster, Job, paced

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(900)]
RUNS = int(os.environ.get("STRETTO_HOSTS_RUNS", "1"))
SEED = int(os.environ.get("STRETTO_HOSTS_SEED", "0"))
EVENTS = 5


class Chaos:
    def __init__(self, hosts: Cluster, job: Job, chance: random.Random) -> None:
        self.hosts, self.job, self.chance = hosts, job, chance
        self.agents: dict[str, Agent] = {}
        self.lost: list[Agent] = []
        self.told: list[str] = []

    def start(self, host: str) -> None:
        self.agents[host] = self.job.start(host, "--slots", "1")

    def settle(self) -> None:
        """All hosts train: nobody may be hit twice before it has recovered, or the state would be lost."""
        self.job.until_workers(len(self.agents))

    def kill_host(self, host: str) -> None:
        self.lost.append(self.agents.pop(host))
        self.hosts.network.hosts[host].kill()
        self.job.until_workers(len(self.agents))
        self.start(host)

    def kill_agent(self, host: str) -> None:
        self.lost.append(self.agents.pop(host))
        self.lost[-1].kill()
        self.job.until_workers(len(self.agents))
        self.start(host)

    def pull(self, host: str) -> None:
        self.hosts.network.hosts[host].pull()
        time.sleep(self.chance.uniform(0.2, 5.0))
        self.hosts.network.hosts[host].plug()

    def part(self, host: str) -> None:
        others = [self.hosts.network.hosts[name] for name in (*self.agents, "e1", "e2", "e3") if name != host]
        self.hosts.network.part([self.hosts.network.hosts[host]], others)
        time.sleep(self.chance.uniform(0.2, 6.0))
        self.hosts.network.heal()

    def member(self, host: str) -> None:
        name = self.chance.choice(("e1", "e2", "e3"))
        self.hosts.etcd.stop(name)
        time.sleep(self.chance.uniform(0.2, 3.0))
        self.hosts.etcd.start(name)

    def store(self, host: str) -> None:
        self.hosts.etcd.stop()
        time.sleep(self.chance.uniform(0.2, 4.0))
        self.hosts.etcd.start()

    def event(self) -> None:
        what = self.chance.choice((self.kill_host, self.kill_agent, self.pull, self.part, self.member, self.store))
        host = self.chance.choice(sorted(self.agents))
        self.told.append(f"step {self.job.steps}: {what.__name__} {host}")
        what(host)


@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_random_failures_change_no_bit(hosts: Cluster, job: Callable[..., Job], seed: int) -> None:
    one = job(paced(epochs=1000))
    chaos = Chaos(hosts, one, random.Random(seed))
    for host in ("h1", "h2", "h3"):
        chaos.start(host)
    chaos.settle()
    for _ in range(EVENTS):
        chaos.event()
        chaos.settle()
        one.until_more(chaos.chance.randrange(1, 20))
    digest = one.finish(lost=chaos.lost)
    assert digest == hosts.reference(one), chaos.told
    audit = one.audit()
    assert audit.returncode == 0, (chaos.told, audit.stdout)
