"""`python -m experiments [--only scaling momentum estimate adaptive] [--seeds N]`: results as JSON, then figures and the page."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from experiments import adaptive, estimate, momentum, page, scaling

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    names = ("scaling", "momentum", "estimate", "adaptive")
    options.add_argument("--only", nargs="*", choices=names, default=names)
    options.add_argument("--seeds", type=int, default=10, help="seeds per experiment; the second takes twice as many")
    args = options.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    runs = {
        "scaling": lambda: scaling.experiment(args.seeds),
        "momentum": lambda: momentum.experiment(2 * args.seeds),
        "estimate": lambda: estimate.experiment(args.seeds),
        "adaptive": adaptive.experiment,
    }
    for name in args.only:
        print(f"{name} …", flush=True)
        started_at = time.monotonic()
        result = runs[name]()
        report = {"seconds": round(time.monotonic() - started_at, 1), "seeds": args.seeds, "found": result}
        (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    page.write(RESULTS)


if __name__ == "__main__":
    main()
