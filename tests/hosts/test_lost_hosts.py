"""Everybody who had the state is lost: with a checkpoint that all hosts see, the job goes on from it to the same digest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.core.journal import Resume
from tests.hosts.cluster import Agent, Cluster, Job, paced

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(600)]


def saving(one: Job, host: str, *options: str) -> Agent:
    where = ("--checkpoint", str(one.folder / "saves"), "--checkpoint-every", "5", "--fence", "4")
    return one.start(host, *where, *options)


def resumed(one: Job) -> int:
    """The step that the last life began after."""
    found = [record for record in one.records() if isinstance(record, Resume)]
    assert found, "the job has begun anew"
    return found[-1].step


def test_after_a_power_cut_the_same_command_goes_on_from_the_checkpoint(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=60))
    first = [saving(one, host, "--slots", "1") for host in ("h1", "h2")]
    one.until_workers(2)
    one.until_more(20)
    for agent in first:
        agent.host.kill()
    again = [saving(one, host, "--slots", "1") for host in ("h1", "h2")]
    assert one.finish(lost=first) == hosts.reference(one)
    assert resumed(one) > 0
    assert len(again) == 2
    assert one.audit().returncode == 0, one.audit().stdout


def test_an_agent_that_is_left_begins_the_next_life_by_itself(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=60))
    worker = saving(one, "h1", "--slots", "1")
    saving(one, "h2", "--slots", "0")
    one.until_step(20)
    worker.host.kill()
    saving(one, "h3", "--slots", "1")
    assert one.finish(lost=[worker]) == hosts.reference(one)
    assert resumed(one) > 0
    assert one.audit().returncode == 0, one.audit().stdout


def test_a_job_that_was_stopped_goes_on_with_the_same_command(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=60))
    first = [saving(one, host, "--slots", "1") for host in ("h1", "h2")]
    one.until_workers(2)
    one.until_more(10)
    stopped = one.verb("h4", "stop", one.name, "--store", one.store, "--wait")
    assert stopped.returncode == 0, stopped.stderr
    assert {agent.end() for agent in first} == {143}
    for host in ("h3", "h4"):
        saving(one, host, "--slots", "1")
    assert one.finish(lost=first) == hosts.reference(one)
    assert resumed(one) > 0
    assert one.audit().returncode == 0, one.audit().stdout
