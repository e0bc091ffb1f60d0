"""Writes docs/explanation/benchmarks.md and the table in README.md from benchmarks/results/*.json: nobody types figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, ROOT, figure

PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- measured: written by `make bench-page` -->", "<!-- end of measured -->"
ORDER = (
    "overhead",
    "exchange",
    "rescale",
    "start",
    "checkpoint",
    "resume",
    "policies",
    "server",
    "sharing",
    "noise",
    "straggler",
    "autoscale",
    "hosts",
)
SHOWN = {
    "overhead": ("CNN, 10M parameters, 2 workers: stretto / DDP", "transformer, 25M parameters, 2 workers: stretto / DDP"),
    "rescale": ("join: stretto / torchrun", "SIGKILL: stretto / torchrun", "SIGSTOP: stretto / torchft"),
    "resume": ("SIGKILL of everything",),
}
"""Beginnings of the rows that the README shows."""
INTRODUCTION = """# Benchmarks

Written by `make bench-page` from `benchmarks/results/*.json`; `make bench-NAME` measures one of them again.

Every benchmark measures its peers in the same run, in turns, so that a busy machine affects all sides alike. Compare the
ratios; the absolute times belong to the machine named with each table. If a bar is missed, the table says so.
"""

REASONS = {
    "policies": """\
Which bars are missed, and why. With declared lengths the average at load 1.0 stays above its bar: pauses alone, with doubling up
from one worker, are 10% of it, and the makespan's bar does not allow the longest jobs to pay for the others' average
([Policies](policies.md) has the details). The makespan is up to 0.4% above its bar at load 2.0, and with families' history 0.1%
at load 1.5: running the longest jobs one after the other is better for the average, and takes 5% more slot-hours than running
them together. Counting the makespan as two jobs, on redrawn workloads at these loads, lowered it by 1.2% with declared lengths
and cost 2.1% of the average; without declared lengths it lowered it by 0.1%.
Without any lengths the average at load 1.0 meets its bar by 0.4%, which is less than the noise of a single workload. Most of the
latest gain there is on the workload with 14 jobs of one long kind (1.015 before, 0.985 now). On redrawn workloads the same change
gains 0.2% at load 1.0, which is nothing, and 4.5% at loads 1.5 and 2.0.""",
}
"""Why bars are missed, from profiles; shown only while one of that benchmark is."""
REMARKS = {
    "rescale": """\
The gap at a join, traced on the job with 100M parameters (two cores, shared with other work). The pause is the transfer of
1.2 GB: 0.3 s. The rest is the newcomer's first step, for which the others wait in the exchange. It is slow because the
newcomer's memory is new. 190,000 page faults for the 0.8 GB in which gradients are summed took 0.35 to 1.06 s, and the first
backward took 1.15 s, later ones 0.3 s; nearly all of that is kernel time. A virtual machine makes it worse: a page that its host
must supply costs 5 µs or more, a recently used page 1.5 µs. The newcomer's own start is a small part: it builds the model in
0.65 s while the others train, lengthens one of their steps by 0.15 s, and then waits without using the processor.

Since then, a newcomer allocates the memory for the sums before it is admitted, on a thread of low priority. In four joins each,
in turns, the step with the join took 3.3 to 5.8 s before and 2.7 to 3.7 s after; a step of two workers takes 2.5 s. The first
backward took 0.3 to 0.5 s in the two joins that were traced. What remains is mostly the pause. A busy machine lengthens all of
it: before the change, one join took 10.5 s at a load of 3.""",
    "sharing": """\
The jobs are twice as long as those of 2026-11-16 (12, 40, 80 and 120 epochs instead of 6, 20, 40 and 60). This machine trains
faster. With the old lengths, half of a short job's 6.7 s was its start (3 s, mostly `import torch`), which no policy can shorten:
the ratio was then 0.717 and 0.746 here, and 0.653 on the slower machine of that day.""",
    "checkpoint": """\
Both cores are busy with training, so all CPU time of a save is taken from the steps. Shards of 16 MB and more are written past the
page cache (O_DIRECT). The thread that saves a worker's half of the state (600 MB) then takes 0.49 s of CPU: 0.07 to copy, 0.40 to
hash with the processor's SHA instructions, 0.02 to write. Through the cache it took 1.0 to 1.4 s, in addition to the kernel's own
threads. The ratio was 1.061 at that time, on another, slower machine; how much of the difference is due to the writer was not
measured.""",
    "noise": """\
Measuring is switched on and off in turns inside one job. An earlier method, turns of sixteen steps of two jobs, could not resolve
the bar: two runs gave 1.056 and 0.926. The first fit of a job is left out, because it imports scipy and happens once. That was
decided after a trial of 40 steps on a busy machine (load 26) that counted it: 1.066 by the clock, 1.090 by CPU time. Another such
trial without it had 0.991 and 1.006.""",
}
"""Notes that a table cannot show."""


def read() -> dict[str, dict[str, Any]]:
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    return dict(sorted(documents.items(), key=lambda pair: (ORDER.index(pair[0]) if pair[0] in ORDER else len(ORDER), pair[0])))


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| what | measured | bar | holds | beside it |", "|---|--:|---|---|---|"]
    words = {True: "yes", False: "**no**", None: ""}
    for row in rows:
        peers = ", ".join(f"{name} {figure(value)}" for name, value in (row.get("peers") or {}).items())
        lines.append(f"| {row['name']} | {figure(row['value'])} | {row['bar']} | {words[row['holds']]} | {peers} |")
    return lines


def where(document: dict[str, Any]) -> str:
    machine = document.get("machine") or {}
    versions = ", ".join(f"{name} {version}" for name, version in (machine.get("versions") or {}).items())
    return (
        f"{str(document.get('date', ''))[:10]}, {machine.get('cpu')}, {machine.get('cores')} cores, "
        f"load {machine.get('load')}, {versions}"
    )


def page(documents: dict[str, dict[str, Any]]) -> str:
    parts = [INTRODUCTION]
    for name, document in documents.items():
        parts += [f"## {name}\n", where(document) + "\n", "\n".join(table(document["rows"])) + "\n"]
        parts += ["\n".join(f"- {note}" for note in document["notes"]) + "\n"] if document.get("notes") else []
        if name in REMARKS:
            parts.append(REMARKS[name] + "\n")
        if name in REASONS and any(row["holds"] is False for row in document["rows"]):
            parts.append(REASONS[name] + "\n")
    return "\n".join(parts)


def excerpt(documents: dict[str, dict[str, Any]]) -> str:
    rows = [
        row
        for name, starts in SHOWN.items()
        if name in documents
        for row in documents[name]["rows"]
        if row["name"].startswith(starts) and row["holds"] is not None
    ]
    if not rows:
        return "Nothing has been measured yet: `make bench`.\n"
    return "\n".join(table(rows)) + "\n"


def fill(readme: Path, text: str) -> None:
    before, rest = readme.read_text().split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def main() -> None:
    documents = read()
    PAGE.write_text(page(documents))
    fill(README, excerpt(documents))
    print(f"{PAGE.relative_to(ROOT)} and the table in {README.name}: {', '.join(documents) or 'no results'}")


if __name__ == "__main__":
    main()
