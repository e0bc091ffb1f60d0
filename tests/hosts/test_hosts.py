"""Several hosts, one job: they come and go, and the model comes out the same."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.hosts.cluster import Cluster, Job, paced

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]


def test_the_leaders_agent_is_killed_and_the_others_go_on_to_the_same_digest(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job()
    first = one.start("h1", "--slots", "1")
    one.until_step(5)
    second = one.start("h2", "--slots", "1")
    one.until_workers(2)
    assert one.leader() is first
    first.kill()
    one.until_workers(1)
    one.until_more(3)
    assert one.leader() is second
    assert one.finish(lost=[first]) == hosts.reference(one)
    assert one.audit().returncode == 0, one.audit().stdout


def test_hosts_are_scaled_and_drained_from_anywhere_and_all_journals_together_are_whole(
    hosts: Cluster, job: Callable[..., Job]
) -> None:
    one = job(paced(epochs=120))
    agents = [one.start(host, "--slots", "1") for host in ("h1", "h2", "h3")]
    one.until_workers(3)
    scaled = one.verb("h4", "scale", one.name, "2", "--store", one.store, "--wait")
    assert scaled.returncode == 0, scaled.stderr
    one.until_workers(2)
    drained = one.verb("h4", "drain", one.name, "--agent", "h1", "--store", one.store)
    assert drained.returncode == 0, drained.stderr
    assert agents[0].end() == 0
    assert agents[0].result["state"] == "left"
    one.until_workers(2)
    assert one.finish(lost=agents[:1]) == hosts.reference(one)
    assert one.audit().returncode == 0, one.audit().stdout
    assert not [key for key in one.stored() if key != "ended"], "the store is left clean"


def test_an_audit_of_several_journals_finds_what_two_hosts_tell_differently(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=10))
    for host in ("h1", "h2"):
        one.start(host, "--slots", "1")
    one.until_workers(2)
    one.finish()
    assert one.audit().returncode == 0, one.audit().stdout
    journal = one.agents[1].folder.journal
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    place = max(k for k, line in enumerate(lines) if line["kind"] == "commit")
    lines[place]["first"] += 1
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    audit = one.audit()
    assert audit.returncode == 1
    assert "told differently" in audit.stdout


def test_a_host_that_dies_with_everything_on_it_costs_the_others_one_step(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=250))
    agents = {host: one.start(host, "--slots", "2") for host in ("h1", "h2", "h3")}
    one.until_workers(6)
    gone = one.leader()
    gone.host.kill()
    one.until_workers(4)
    again = one.start(gone.host.name, "--slots", "2")
    one.until_workers(6)
    assert one.finish(lost=[gone]) == hosts.reference(one)
    assert again.result["state"] == "finished"
    assert len(agents) == 3
    assert one.audit().returncode == 0, one.audit().stdout


def test_ctrl_c_on_one_host_lets_the_others_go_on_and_stop_ends_all(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=2000))
    first, second = one.start("h1", "--slots", "1"), one.start("h2", "--slots", "1")
    one.until_workers(2)
    first.interrupt()
    assert first.end() == 130
    assert first.result["state"] == "left"
    one.until_workers(1)
    listed = one.verb("h3", "ps", "--store", one.store, "--json")
    row = next(row for row in json.loads(listed.stdout) if row["name"] == one.name)
    assert (row["state"], row["leader"], row["members"]) == ("running", "h2", 1)
    printed = one.verb("h3", "logs", one.name, "--store", one.store)
    assert "[h2.w0] hello from h2.w0" in printed.stdout
    stopped = one.verb("h3", "stop", one.name, "--store", one.store, "--wait")
    assert stopped.returncode == 0, stopped.stderr
    assert second.end() == 143
    assert second.result["state"] == "stopped"
    assert not [key for key in one.stored() if key != "ended"]


def test_a_script_that_fails_on_one_host_fails_the_job_on_all_with_its_traceback(hosts: Cluster, job: Callable[..., Job]) -> None:
    trouble = """
    def trouble(step, place):
        if step == 20:
            raise RuntimeError("the data is wrong")
    """
    one = job(paced(trouble, epochs=100))
    agents = [one.start(host, "--slots", "1", "--max-restarts", "1") for host in ("h1", "h2")]
    for agent in agents:
        assert agent.end() == 1
        assert agent.result["state"] == "failed"
    assert any("the data is wrong" in (agent.result["traceback"] or "") for agent in agents)


STATE_BYTES = 32 << 20
LARGE = f"""model = torch.nn.Linear(4, 1)
model.register_buffer("much", torch.arange({STATE_BYTES // 4}, dtype=torch.int32))
"""


def test_three_newcomers_of_one_host_get_the_state_over_the_network_once(hosts: Cluster, job: Callable[..., Job]) -> None:
    one = job(paced(epochs=120).replace("model = torch.nn.Linear(4, 1)\n", LARGE))
    one.start("h1", "--slots", "1")
    one.until_step(3)
    before = hosts.network.hosts["h2"].heard_bytes()
    one.start("h2", "--slots", "3")
    one.until_workers(4)
    heard = hosts.network.hosts["h2"].heard_bytes() - before
    assert STATE_BYTES < heard < 1.3 * STATE_BYTES, f"{heard / STATE_BYTES:.2f} states have come in"
    assert one.finish() == hosts.reference(one)
    assert one.audit().returncode == 0, one.audit().stdout


def test_a_job_over_ipv6(hosts: Cluster, job: Callable[..., Job]) -> None:
    if hosts.network.hosts["h1"].no_ipv6:
        pytest.skip(f"there is no IPv6 on this machine: {hosts.network.hosts['h1'].no_ipv6}")
    one = job(paced(epochs=20))
    for host in ("h1", "h2"):
        one.start(host, "--slots", "1", "--interface", hosts.network.hosts[host].address6)
    one.until_workers(2)
    assert one.finish() == hosts.reference(one)
