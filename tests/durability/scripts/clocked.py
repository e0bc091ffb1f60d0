"""A script that was never written for us. It writes down when it begins and when its optimizer steps, on its own clock."""

import argparse
import json
import os
import time

options = argparse.ArgumentParser()
options.add_argument("--marks", required=True)
options.add_argument("--steps", type=int, default=10_000)
args = options.parse_args()
marks = open(f"{args.marks}-{os.environ['RANK']}", "a", buffering=1)  # noqa: SIM115


def mark(kind: str) -> None:
    marks.write(json.dumps([time.monotonic(), kind]) + "\n")


mark("began")
import torch  # noqa: E402

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(args.steps):
    model(torch.randn(8, 4)).square().mean().backward()
    mark("steps")
    optimizer.step()
    mark("stepped")
    optimizer.zero_grad()
    time.sleep(0.02)
    if number == 20:
        print(f"rank {os.environ['RANK']} has made 20 steps", flush=True)
