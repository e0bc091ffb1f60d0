"""One pipeline and one check for server, simulator and what-if; a policy is one file that states its traits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from policy_builders import job, nodes
from typer.testing import CliRunner

from stretto.cli.simulate import command
from stretto.core.errors import PolicyError
from stretto.scheduling import pipeline, policies, registry
from stretto.scheduling.pipeline import POLICY_ALONE, PipelineSettings
from stretto.scheduling.types import Allocation, ClusterNode, LoadedPolicy, PolicyTraits, SchedulableJob
from stretto.server.decisions import policy_process
from stretto.server.decisions.policy_runner import PolicyInput, check, names
from stretto.server.decisions.replay import replay
from stretto.simulation.cluster.build import build
from stretto.simulation.cluster.engine import Simulation, SimulationSettings
from stretto.simulation.cluster.trace import read_trace

Places = dict[str, tuple[tuple[str, int], ...]]

HEAD = '''"""{summary}"""
from stretto.scheduling.types import Allocation, PolicyTraits

TRAITS = PolicyTraits({traits})


def {name}(jobs, nodes, now, time_s):
    {body}
'''


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts a policy's file where policies are; nothing else is edited."""
    folder = tmp_path / "policies"
    folder.mkdir()
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(folder)])
    dropped: list[str] = []

    def write(name: str, body: str, traits: str = "") -> None:
        summary = f"A policy of the tests, {name}."
        (folder / f"{name}.py").write_text(HEAD.format(name=name, body=body, traits=traits, summary=summary))
        dropped.append(name)

    yield write
    for name in dropped:
        sys.modules.pop(f"{policies.__name__}.{name}", None)


def workload(folder: Path, *, count: int = 2, **columns: object) -> Path:
    rows = {"num_replicas": 1, "batch_size": 100, "step_s": 1.0, "steps": 600, "max": 8, **columns}
    lines = [f"name,time,{','.join(rows)}"]
    lines += [f"job-{n},{90 * n},{','.join(str(value) for value in rows.values())}" for n in range(count)]
    path = folder / "workload.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def row(name: str, time_s: float, **more: object) -> dict[str, Any]:
    usual = {"tenant": "ann", "min_workers": 1, "max_workers": 8, "priority": 0, "batch": 64, "steps": 100000}
    return {"name": name, "time": time_s, **usual, "throughput": {"1": 64.0, "2": 120.0}, **more}


def words_of_the_simulator(folder: Path, name: str, settings: PipelineSettings, **columns: object) -> str:
    jobs = build(read_trace(workload(folder, owner="ann", **columns)), policy=name)
    with pytest.raises(PolicyError) as refused:
        Simulation(jobs, nodes(2), registry.load(name), SimulationSettings(pipeline=settings)).run()
    return str(refused.value)


def words_of_what_if(name: str, **more: Any) -> str:
    rows = [row("job", 0.0), row("job", 900.0)]
    with pytest.raises(PolicyError) as refused:
        replay(rows, {"n00": 4, "n01": 4}, name, period_s=60.0, **more)
    return str(refused.value)


def line_of_the_server(name: str, jobs: list[SchedulableJob], places: Places) -> tuple[PolicyInput, str]:
    """What the policy's process says to the server."""
    snapshot = PolicyInput(name, jobs, nodes(2), places, 100.0)
    with pytest.raises(PolicyError) as refused:
        policy_process.decide(snapshot, jobs, None)
    return snapshot, str(refused.value)


def test_a_policy_that_breaks_a_quota_is_refused_by_all_three_with_the_same_words(
    drop: Callable[..., None], tmp_path: Path
) -> None:
    drop("greedy", "return Allocation({job.name: ((nodes[place].name, 3),) for place, job in enumerate(jobs)})", 'batch="fixed"')
    words = "the jobs of ann were allocated more than their quota of 2 slots"
    jobs = [job("a", owner="ann", quota=2), job("b", owner="ann", quota=2)]
    snapshot, told = line_of_the_server("greedy", jobs, {})
    assert told == words
    line = json.dumps({"places": {"a": [["n00", 3]]}, "reasons": {}}).encode()
    with pytest.raises(PolicyError, match=words):
        check(snapshot, line)  # the server does not take its child's word for it
    assert words_of_the_simulator(tmp_path, "greedy", PipelineSettings(), quota=2) == words
    assert words_of_the_simulator(tmp_path, "greedy", POLICY_ALONE, quota=2) == words
    assert words_of_what_if("greedy", quota=2) == words


def test_a_policy_that_takes_off_a_job_that_has_not_had_its_turn_is_refused_by_all_three(
    drop: Callable[..., None], tmp_path: Path
) -> None:
    """Everything is given to the job that came last."""
    drop("lifo", "return Allocation({jobs[-1].name: ((nodes[0].name, 4),)} if jobs else {})", 'batch="fixed"')
    settings = PipelineSettings(turn_s=3600.0, make_room=False)
    snapshot = PolicyInput("lifo", [job("job-0"), job("job-1")], nodes(2), {"job-0": (("n00", 4),)}, 100.0, settings=settings)
    words = "job-0 is not preemptible, but was taken off the cluster"
    with pytest.raises(PolicyError, match=words):
        policy_process.decide(snapshot, list(snapshot.jobs), None)
    assert words_of_the_simulator(tmp_path, "lifo", settings, steps=6000) == words
    assert words_of_what_if("lifo", pipeline=settings) == words


def test_a_policy_that_moves_a_pinned_job_is_refused_by_pipeline_and_server(drop: Callable[..., None]) -> None:
    drop("mover", "return Allocation({job.name: ((nodes[-1].name, 2),) for job in jobs})")
    pinned, places = job("a", pinned=True, least=2, most=2), {"a": (("n00", 2),)}
    _, told = line_of_the_server("mover", [pinned], places)
    with pytest.raises(PolicyError) as refused:
        pipeline.decide(registry.load("mover"), [pinned], nodes(2), Allocation(places), 100.0, settings=POLICY_ALONE)
    assert str(refused.value) == told == "a is pinned, but was moved from (('n00', 2),) to (('n01', 2),)"


def test_a_file_among_the_policies_is_a_policy_with_its_traits_everywhere(drop: Callable[..., None], tmp_path: Path) -> None:
    body = "return Allocation({job.name: now.of(job.name) or ((nodes[0].name, 1),) for job in jobs[:1]})"
    drop("alone", body, traits='fixed_sizes=True, batch="fixed"')
    drop("plain", body)
    assert names()["alone"] == "A policy of the tests, alone.", "the server and its page"
    assert registry.load("alone").traits == PolicyTraits(fixed_sizes=True, batch="fixed")
    assert registry.load("plain").traits == PolicyTraits()
    holder, waiting = job("a", most=4), job("b", arrival_s=1.0)
    shown = {}
    for name in ("alone", "plain"):
        snapshot = PolicyInput(name, [holder, waiting], nodes(1), {"a": (("n00", 4),)}, 100.0)
        shown[name] = policy_process.decide(snapshot, list(snapshot.jobs), None).shown.workers("a")
    assert shown == {"alone": 4, "plain": 3}, "the server makes room only under a policy that resizes"
    path = workload(tmp_path, max_batch_size=400)
    built = {name: build(read_trace(path), policy=name)[0] for name in shown}
    assert built["alone"].batch.fixed == 100 and built["plain"].batch.fixed is None, "the simulator"
    assert replay([row("job", 0.0, steps=100)], {"n00": 4}, "alone", period_s=60.0)["jobs"].keys() == {"job-0"}, "what-if"
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(path), "--policy", "alone,plain", "--as-server", "-q", "-o", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["policies"].keys() == {"alone", "plain"}


def test_the_simulator_decides_as_the_server_if_it_is_told_to(tmp_path: Path) -> None:
    """A policy that never shrinks anybody by itself: only the server's steps let the second job in."""

    def stubborn(jobs: Any, nodes_: Any, now: Allocation, time_s: float) -> Allocation:
        first = {jobs[0].name: ((nodes_[0].name, jobs[0].most),)}
        return Allocation(dict(now.places) or first)

    def starts(settings: PipelineSettings) -> list[float]:
        jobs = build(read_trace(workload(tmp_path, max=4)), policy="fifo")
        outcome = Simulation(jobs, nodes(1), stubborn, SimulationSettings(pipeline=settings)).run()
        return [each.start_s or 0.0 for each in outcome.jobs]

    apart, together = starts(POLICY_ALONE), starts(PipelineSettings())
    assert together[1] < apart[1]


# -- kinds of nodes ------------------------------------------------------------------------------------------------------

MIXED = [ClusterNode("c0", 8, "cpu"), ClusterNode("g0", 2, "gpu"), ClusterNode("g1", 2, "gpu")]


@pytest.mark.parametrize("name", registry.names())
def test_a_job_runs_on_nodes_of_its_kind_only(name: str) -> None:
    jobs = [job(f"j{n}", wanted=2, most=2, node_kind=kind) for n, kind in enumerate(("gpu", "cpu", "gpu", "tpu"))]
    answer = pipeline.decide(registry.load(name), jobs, MIXED, Allocation(), 60.0, settings=PipelineSettings()).answer
    found = {each: {node[0] for node, _ in placement} for each, placement in answer.places.items()}
    assert found == {"j0": {"g"}, "j1": {"c"}, "j2": {"g"}}


def test_room_is_made_on_nodes_of_the_waiting_jobs_kind() -> None:
    holder, other = job("holder", most=4, node_kind="gpu"), job("other", most=8)
    current = Allocation({"holder": (("g0", 2), ("g1", 2)), "other": (("c0", 8),)})
    waiting = job("waiting", arrival_s=9.0, node_kind="gpu")
    shown = pipeline.prepare([holder, other, waiting], MIXED, current, room=True)
    assert (shown.workers("holder"), shown.workers("other"), shown.of("waiting")[0][0][0]) == (3, 8, "g")


def test_a_wrong_kind_is_refused() -> None:
    def wrong(jobs: Any, nodes_: Any, now: Allocation, time_s: float) -> Allocation:
        return Allocation({"a": (("c0", 1),)})

    with pytest.raises(PolicyError, match="a is placed on c0 of kind cpu, it runs on nodes of kind gpu only"):
        pipeline.decide(wrong, [job("a", node_kind="gpu")], MIXED, Allocation(), 0.0, settings=POLICY_ALONE)


def test_jobs_of_a_scarce_kind_take_turns_and_no_others() -> None:
    runs = [job("g", node_kind="gpu", least=4, most=4, turn_began_s=0.0), job("c", turn_began_s=0.0)]
    waits = job("w", node_kind="gpu", least=4, most=4)
    current = Allocation({"g": (("g0", 2), ("g1", 2)), "c": (("c0", 1),)})
    seen = pipeline.with_turns([*runs, waits], MIXED, current, 1000.0, turn_s=60.0)
    assert [each.name for each in seen if each.preemptible] == ["g"]


def test_a_job_below_its_new_minimum_does_not_grow_beyond_its_owners_quota() -> None:
    grown = job("a", least=3, most=3, owner="ann", quota=3)
    other = job("b", owner="ann", quota=3)
    current = Allocation({"a": (("n00", 1),), "b": (("n00", 1),)})
    assert pipeline.prepare([grown, other], nodes(1), current, room=False).workers("a") == 1
    assert pipeline.prepare([grown], nodes(1), Allocation({"a": (("n00", 1),)}), room=False).workers("a") == 3


def test_a_policy_is_called_with_its_traits_at_hand() -> None:
    loaded = registry.load("fifo")
    assert isinstance(loaded, LoadedPolicy) and loaded.summary
    assert loaded([job("a")], nodes(1), Allocation(), 0.0).workers("a") == 1
