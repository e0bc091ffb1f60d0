"""A job that trains one model of every kind at once, so that one digest speaks for all of them.

MLP with momentum, CNN with BatchNorm and dropout, transformer with clipping and a cosine schedule, LSTM, bf16 autocast with
a scaler, a GAN that needs two passes. Prints a digest for each and one for all.
"""

import argparse
import hashlib
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import stretto

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--samples", type=int, default=100)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--kinds", default="mlp,cnn,transformer,lstm,bf16,gan")
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--digests", default="", help="a folder: each worker that finishes leaves its digest there")
parser.add_argument("--break-seeds", action="store_true", help="a control: random numbers of the process instead of the slice")
parser.add_argument("--break-threads", action="store_true", help="a control: two threads in one worker")
args = parser.parse_args()
KINDS = args.kinds.split(",")

job = stretto.join(seed=11)
if args.break_threads and os.environ.get("STRETTO_WORKER", "w0") != "w0":
    torch.set_num_threads(2)


class Digits(torch.utils.data.Dataset):
    """Small pictures with augmentation from every generator that people use."""

    def __init__(self, n: int) -> None:
        g = torch.Generator().manual_seed(5)
        self.x, self.y = torch.randn(n, 1, 8, 8, generator=g), torch.randint(0, 5, (n,), generator=g)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn(1, 8, 8) + 0.05 * random.random() + 0.05 * float(np.random.rand())
        return self.x[k] + noise, self.y[k]


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(x.squeeze(1))).mean(1))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x.squeeze(1))[0][:, -1])


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(216, 5))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 17), nn.Tanh(), nn.Linear(17, 5))


models: dict[str, nn.Module] = {}
optimizers: dict[str, torch.optim.Optimizer] = {}
for kind, build in {"mlp": mlp, "cnn": cnn, "transformer": Transformer, "lstm": Lstm, "bf16": mlp}.items():
    if kind in KINDS:
        models[kind] = build()
if "gan" in KINDS:
    models["make"] = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 64))
    models["judge"] = nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
for kind, model in models.items():
    p = model.parameters()
    optimizers[kind] = (
        torch.optim.SGD(p, lr=0.05, momentum=0.9)
        if kind in ("mlp", "lstm")
        else torch.optim.AdamW(p, lr=2e-3)
        if kind == "transformer"
        else torch.optim.Adam(p, lr=2e-3)
    )
scaler = torch.amp.GradScaler("cpu", enabled="bf16" in KINDS)
shared = {**{f"{k}_model": m for k, m in models.items()}, **{f"{k}_optimizer": o for k, o in optimizers.items()}, "scaler": scaler}
schedule = None
if "transformer" in KINDS:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers["transformer"], T_max=20)
    shared["schedule"] = schedule
job.share(**shared)
data = job.loader(Digits(args.samples), batch_size=args.batch, slices=8, tail="keep", num_workers=args.loader_workers)
val = job.loader(Digits(41), batch_size=16, train=False)


def first_pass(x: torch.Tensor, y: torch.Tensor, step) -> None:
    for kind in KINDS:
        if kind == "bf16":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(models[kind](x), y)
            scaler.scale(loss).backward()
        elif kind == "gan":
            fake = models["make"](torch.randn(len(x), 4)).detach()
            real, false = models["judge"](x.flatten(1)), models["judge"](fake)
            F.binary_cross_entropy_with_logits(real, torch.ones_like(real)).backward()
            loss = F.binary_cross_entropy_with_logits(false, torch.zeros_like(false))
            loss.backward()
        else:
            loss = F.cross_entropy(models[kind](x), y)
            loss.backward()
        step.log(**{kind: loss})


for _ in job.epochs(args.epochs):
    for step in data:
        for x, y in step:
            if args.break_seeds:
                torch.manual_seed(os.getpid() + time.time_ns())
            first_pass(x, y, step)
            if args.pause:
                time.sleep(args.pause)
        for kind in KINDS:
            if kind == "transformer":
                nn.utils.clip_grad_norm_(models[kind].parameters(), 1.0)
            if kind == "bf16":
                scaler.step(optimizers[kind])
                scaler.update()
            else:
                optimizers["judge" if kind == "gan" else kind].step()
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        if "gan" in KINDS:
            for x, _y in step:
                judged = models["judge"](models["make"](torch.randn(len(x), 4)))
                F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged)).backward()
            optimizers["make"].step()
            for optimizer in optimizers.values():
                optimizer.zero_grad()
    with torch.no_grad():
        for step in val:
            for x, y in step:
                step.log(**{kind: F.cross_entropy(models[kind](x), y) for kind in KINDS if kind != "gan"})


def digest(module: nn.Module) -> str:
    sha = hashlib.sha256()
    for tensor in module.state_dict().values():
        sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


if job.chief:
    for kind, model in models.items():
        print(f"{kind}: {digest(model)}")
    print(f"eval: {sorted(val.metrics.items())}")
    print(f"digest: {job.digest()}", flush=True)
if args.digests:
    with open(os.path.join(args.digests, f"{job.worker}-{os.getpid()}"), "w") as file:
        file.write(job.digest())
