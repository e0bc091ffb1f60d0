"""Step time while a 100M-parameter Adam state (1.2 GB) is saved every 20 steps, and the time that a save blocks.

One run of two workers. A save begins at every 40th step, so windows of 20 steps with a save in them alternate with windows of 20
without: both sides of the ratio are measured side by side, and a machine that is busy for a while hits both. The last steps save
the same state with `torch.save` in the loop, to the same disk, without fsync: that is what a training loop would wait for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.process import PYTHON, finish, launch
from benchmarks.report import ROOT, Row, at_most, inform, publish

EVERY = 20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--pairs", type=int, default=4, help="windows with a save, and as many without")
    options.add_argument("--plain", type=int, default=4, help="saves with torch.save")
    options.add_argument("--workload", default="large")
    options.add_argument("--limit", type=float, default=1800.0)
    args = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="stretto-bench-", dir=ROOT / "benchmarks" / "results") as folder:
        publish(
            "checkpoint",
            measure(Path(folder), args.workload, pairs=args.pairs, plain=args.plain, limit_s=args.limit),
            notes=["a window has 20 steps; the blocking time is that of copying a worker's half of the state"],
        )


def measure(folder: Path, workload: str, *, pairs: int, plain: int, limit_s: float) -> list[Row]:
    steps = 2 * EVERY * pairs + 2 * EVERY
    process = launch(
        [
            PYTHON,
            "-m",
            "stretto.cli.main",
            "run",
            "--quiet",
            "--no-tensorboard",
            "--workers",
            "2",
            "--runs",
            folder / "runs",
            "--name",
            "job",
            "--slice-timeout",
            "300",
            "--checkpoint",
            folder / "saved",
            "--checkpoint-every",
            str(2 * EVERY),
            "--keep",
            "1",
            ROOT / "benchmarks" / "scripts" / "checkpoint_stretto.py",
            folder,
            workload,
            str(steps),
            str(plain),
        ],
        log=folder / "run.log",
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
    )
    try:
        if process.wait(limit_s):
            raise RuntimeError((folder / "run.log").read_text()[-3000:])
    finally:
        finish([process])
    times = json.loads((folder / "times.json").read_text())
    lines = [json.loads(line) for line in (folder / "runs" / "job" / "journal.jsonl").read_text().splitlines()]
    return rows(times, [line for line in lines if line["kind"] == "checkpoint" and not line["final"]], steps=steps)


def rows(times: dict[str, list[float]], checkpoints: list[dict[str, float]], *, steps: int) -> list[Row]:
    ends = times["ends"]
    saved = {int(line["step"]): line for line in checkpoints}
    began = [step for step in range(2 * EVERY, steps - EVERY, 2 * EVERY) if step in saved]
    busy = [ends[step + EVERY - 1] - ends[step - 1] for step in began]
    idle = [ends[step + 2 * EVERY - 1] - ends[step + EVERY - 1] for step in began]
    blocked = statistics.median(saved[step]["blocked_s"] for step in began)
    plain = statistics.median(times["saves"])
    write_s = statistics.median(saved[step]["seconds"] for step in began)
    within = max(saved[step]["seconds"] / window for step, window in zip(began, busy, strict=True))
    return [
        at_most(
            "step time while saving every 20 steps / without",
            sum(busy) / sum(idle),
            1.05,
            bar="≤ 1.05 ×",
            peers={"saving s/step": sum(busy) / len(busy) / EVERY, "without s/step": sum(idle) / len(idle) / EVERY},
        ),
        at_most(
            "time that a save blocks / torch.save in the loop",
            blocked / plain,
            0.1,
            bar="≤ 1/10",
            peers={"blocks s": blocked, "torch.save s": plain},
        ),
        inform(
            "seconds until a save is durable", write_s, peers={"bytes": checkpoints[-1]["bytes"], "share of the window": within}
        ),
    ]


if __name__ == "__main__":
    main()
