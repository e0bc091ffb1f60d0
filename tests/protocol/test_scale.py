"""A thousand workers in one job: what a change costs, counted, not timed (docs/explanation/protocol.md has the times)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from stretto.membership import store_schema
from stretto.membership.leader import Leadership, leader_view, next_writes
from stretto.membership.stores.mvcc_table import MvccTable
from stretto.membership.stores.store import Guard, Put
from stretto.membership.timeouts import MissingAgents, Timeouts
from stretto.membership.worker_status import Phase, WorkerStatus

PER_AGENT = 8


@dataclass(slots=True)
class Big:
    """A job whose agents do nothing but obey, each with one transaction for all of its workers."""

    workers: int
    table: MvccTable
    transactions: int = 0
    decisions: int = 0
    bytes_published: int = 0

    @staticmethod
    def of(workers: int) -> Big:
        big = Big(workers, MvccTable())
        job = {"least": workers, "most": workers + 1, "slices": workers + 1}
        puts = [
            Put(store_schema.JOB, store_schema.text(job)),
            Put(store_schema.WANTED, store_schema.text({"workers": workers})),
            Put(store_schema.LEADER, store_schema.text({"agent": "a0", "term": 1, "lease": 1})),
        ]
        puts += [
            Put(store_schema.AGENTS + agent, store_schema.text({"agent": agent, "slots": PER_AGENT + 1})) for agent in big.agents
        ]
        big.table.commit(puts)
        for agent in big.agents:
            big.report(agent, phase=Phase.READY)
        return big

    @property
    def agents(self) -> list[str]:
        return [f"a{k}" for k in range(self.workers // PER_AGENT)]

    def names(self, agent: str) -> list[str]:
        first = int(agent[1:]) * PER_AGENT
        return [f"w{k}" for k in range(first, first + PER_AGENT)]

    def report(self, agent: str, **facts: object) -> None:
        fresh = [
            WorkerStatus(name, agent, Phase.READY, int(name[1:]), slices=self.workers + 1, shape="s") for name in self.names(agent)
        ]
        statuses = [replace(status, **facts) for status in fresh]  # type: ignore[arg-type]
        self.table.commit([Put(store_schema.WORKERS + one.worker, store_schema.text(one.to_dict())) for one in statuses])
        self.transactions += 1

    def lead(self) -> None:
        """Decides until there is nothing more to do."""
        guard = Guard(store_schema.LEADER, store_schema.revision(self.table.entries, store_schema.LEADER))
        office = Leadership(guard, 1, MissingAgents(Timeouts(), 0.0))
        for _ in range(10):
            self.decisions += 1
            due = next_writes(self.table.entries, leader_view(self.table.entries, office, now=10.0), office)
            if not due:
                return
            _, write = due[0]
            assert self.table.commit(write.puts, guards=write.guards) is not None
            self.transactions += 1
            self.bytes_published += sum(len(put.value or "") for put in write.puts if put.key == store_schema.ROSTER)
        raise AssertionError("the leader does not come to rest")

    def enter(self) -> None:
        last = store_schema.roster(self.table.entries)
        assert last is not None
        for agent in self.agents:
            self.report(agent, phase=Phase.MEMBER, roster=last.number, tick=0)


def cost_of_a_join(workers: int) -> Big:
    big = Big.of(workers)
    big.lead()
    big.enter()
    big.lead()
    newcomer = WorkerStatus("w999999", "a0", Phase.READY, 999_999, slices=workers + 1, shape="s")
    big.table.commit(
        [
            Put(store_schema.WORKERS + newcomer.worker, store_schema.text(newcomer.to_dict())),
            Put(store_schema.WANTED, store_schema.text({"workers": workers + 1})),
        ]
    )
    big.transactions = big.decisions = big.bytes_published = 0
    big.lead()
    plan = store_schema.roster(big.table.entries)
    assert plan is not None
    assert plan.joined == ("w999999",)
    assert len(plan.members) == workers + 1
    big.enter()
    return big


@pytest.mark.parametrize("count", ["transactions", "decisions", "bytes_published"])
def test_what_a_change_costs_grows_no_faster_than_the_workers(count: str) -> None:
    small, large = (getattr(cost_of_a_join(workers), count) for workers in (248, 992))
    assert 0 < large <= small * 4.2


def test_a_plan_is_one_transaction_whatever_the_number_of_workers() -> None:
    big = cost_of_a_join(992)
    assert big.transactions - len(big.agents) == 2  # the plan, and the targets of the agents
