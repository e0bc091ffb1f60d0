"""The workload of the noise benchmark: one job in which measuring goes on and off from step to step, and every step is timed."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import stretto
from benchmarks.models import WORKLOADS
from stretto.batching.batch_policies import Fixed
from stretto.batching.grad_norms import RIPE
from stretto.batching.noise_scale import Sampling

SAMPLED = 4
"""Of the steps with measuring on, one in this many samples gradients (one in 16 in a job; the benchmark weights it so)."""


@dataclass(frozen=True, slots=True)
class Turns(Sampling):
    """The usual two slices, in every eighth step."""

    every: int = 2 * SAMPLED
    first: int = 0


class Switch:
    """Switches everything off and on that `Adaptive` and a rule add to a job with a fixed batch."""

    def __init__(self, job: stretto.Job) -> None:
        self._job, self._planning = job, job._session.batches
        assert self._planning.meter is not None and self._planning.rule is not None
        self._planning._sampling = Turns()
        self._meter, self._rule, self._policies = self._planning.meter, self._planning.rule, dict(self._planning._policies)

    def set(self, on: bool) -> None:
        """A step that is off keeps one thing: the hook that checks whether the gradient is finite."""
        planning, runner = self._planning, self._job._session.runner
        assert runner is not None and planning.rate is not None
        planning.meter = self._meter if on else None
        planning.rule = self._rule if on else None
        planning._policies = (
            self._policies if on else {number: Fixed(policy.reference) for number, policy in self._policies.items()}
        )
        runner.reducer.watch = on
        planning.rate.detach()
        if on:
            planning.rate._attach(self._rule)
        assert planning.active is on


def main(folder: Path, name: str, steps: int) -> None:
    workload = WORKLOADS[name]
    job = stretto.join(seed=0)
    model = workload.build()
    optimizer = workload.optimize(model)
    job.share(model=model, optimizer=optimizer, lr_rule=stretto.SqrtScale())
    # The bounds are equal, so that all steps have the same batch: all is measured and fitted, nothing is changed.
    batch = stretto.Adaptive(start=workload.batch, at_most=workload.batch)
    data = job.loader(workload.samples(workload.batch * steps), batch_size=batch)
    rows: list[dict[str, object]] = []
    switch: Switch | None = None
    for _ in job.epochs(1):
        for step in data:
            wall, cpu = time.perf_counter(), time.process_time()
            if switch is None:
                switch = Switch(job)
            else:  # a fit began with the end of the step before: it has a price of its own and must not fall on this one
                rows[-1] |= {"wall_s": wall - rows[-1]["wall_at"], "cpu_s": cpu - rows[-1]["cpu_at"]}
                job._session.batches.speed.join()
                rows[-1] |= {"fit_s": time.perf_counter() - wall, "fit_cpu_s": time.process_time() - cpu}
            on = step.index % 2 == 0
            switch.set(on)
            sampled = on and Turns().includes(step.index)
            rows.append(
                {"step": step.index, "on": on, "sampled": sampled, "wall_at": time.perf_counter(), "cpu_at": time.process_time()}
            )
            for inputs, targets in step:
                loss = workload.loss(model(inputs), targets)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if sampled and step.index > RIPE:
                assert job._session.batches._measured, "a step that should be sampled was not"
    (folder / f"{os.getpid()}.json").write_text(json.dumps({"chief": job.chief, "rows": rows[:-1]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
