"""A simulated agent that speaks the real protocol: run folder, journal, control port; no torch, no workers, some
milliseconds to start.

It takes the arguments of `stretto run` and "trains" the script's arguments: STEPS of STEP_S seconds divided by the
workers. It is used where hundreds of jobs run at once (`benchmarks/server.py`) and where a test needs a job that
behaves badly on purpose.

    simulated_agent.py run --runs DIR --name N --workers A:B --start K script.py [--steps 50] [--step-s 0.05] [--fail-at 10]
    [--hang] …
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socketserver
import sys
import threading
import time
from pathlib import Path


class Run:
    def __init__(self, options: argparse.Namespace, script: argparse.Namespace) -> None:
        self.folder = Path(options.runs) / options.name
        least, _, most = options.workers.partition(":")
        self.least, self.most = int(least), int(most or least)
        self.workers = self.wanted = options.start
        self.script = script
        self.stop: str | None = None
        self.lock = threading.Lock()
        self.folder.mkdir(parents=True)
        (self.folder / "logs").mkdir()
        self.journal = (self.folder / "journal.jsonl").open("a", buffering=1)

    def write(self, kind: str, **fields: object) -> None:
        with self.lock:
            self.journal.write(json.dumps({"t": time.time(), "kind": kind, **fields}) + "\n")

    def handle(self, request: dict[str, object]) -> dict[str, object]:
        match request.get("verb"):
            case "status":
                return {"workers": self.workers, "wanted": self.wanted}
            case "scale":
                workers = int(str(request["workers"]))
                if not self.least <= workers <= self.most:
                    raise ValueError(f"{workers} workers: allowed are {self.least} to {self.most}")
                self.wanted = workers
                return {}
            case "stop" | "drain":
                self.stop = "now" if request.get("now") else "graceful"
                return {}
            case verb:
                raise ValueError(f"no verb {verb!r}")

    def serve(self) -> None:
        run, token = self, os.urandom(8).hex()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    request = json.loads(self.rfile.readline(65536))
                    if request["token"] != token:
                        raise ValueError("the token is not this run's")
                    answer = {"ok": True, **run.handle(request)}
                except (ValueError, KeyError, TypeError) as error:
                    answer = {"ok": False, "error": str(error)}
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        fresh = self.folder / ".control"
        fresh.write_text(json.dumps({"pid": os.getpid(), "port": server.server_address[1], "token": token}))
        os.replace(fresh, self.folder / "control.json")

    def switch(self, workers: int, step: int, cause: str) -> None:
        self.workers = workers
        self.write("switch", number=step + 1, step=step, workers=workers, joined=[], left=[], cause=cause, pause_ms=3.0)

    def train(self) -> int:
        script, batch = self.script, 64
        if script.hang:
            signal.pause()
        self.switch(self.wanted, 0, "start")
        for step in range(script.steps):
            if self.stop:
                return self.end("stopped", step)
            if step == script.fail_at:
                print("Traceback: the script has raised ValueError: as it was told to", flush=True)
                return self.end("failed", step, error="ValueError: as it was told to")
            if step == script.stall_at:
                self.write("event", what="stalled", text="no progress for 31 s: w0 in the exchange of training step 5")
                while not os.path.exists(script.until) and not self.stop:
                    time.sleep(0.02)
                self.write("event", what="unstalled", text="the job goes on after 32 s")
            if self.wanted != self.workers:
                self.switch(self.wanted, step, "join" if self.wanted > self.workers else "leave")
            seconds = script.step_s * (script.serial + (1 - script.serial) / self.workers)
            time.sleep(seconds)
            loss = script.floor + (2.5 - script.floor) * script.fall ** (step + 1) + (script.noise if step % 2 else -script.noise)
            first = step * batch
            self.write(
                "commit",
                step=step,
                tick=step + 1,
                epoch=0,
                loader=0,
                first=first,
                count=batch,
                batch=batch,
                roster=1,
                workers=self.workers,
                metrics={"loss": loss},
                step_s=seconds,
            )
            if script.chatter:
                print("x" * script.chatter, flush=True)
            if script.report_every and step % script.report_every == 0:
                self.write("report", step=step, of="job", metrics={"noise_scale": 100.0 + step, "goodput": batch / seconds})
        return self.end("finished", script.steps, digest=f"{script.steps:064x}")

    def end(self, state: str, steps: int, *, digest: str | None = None, error: str | None = None) -> int:
        self.write("end", state=state, digest=digest, steps=steps, error=error)
        (self.folder / "control.json").unlink(missing_ok=True)
        return 1 if state == "failed" else 0


def parse(arguments: list[str]) -> tuple[argparse.Namespace, argparse.Namespace]:
    options = argparse.ArgumentParser()
    options.add_argument("verb")
    options.add_argument("--runs", required=True)
    options.add_argument("--name", required=True)
    options.add_argument("--workers", required=True)
    options.add_argument("--start", type=int, default=1)
    options.add_argument("--checkpoint")
    options.add_argument("--checkpoint-every")
    options.add_argument("--max-restarts")
    options.add_argument("script")
    options.add_argument("rest", nargs=argparse.REMAINDER)
    found = options.parse_args(arguments)
    script = argparse.ArgumentParser()
    script.add_argument("--steps", type=int, default=50)
    script.add_argument("--step-s", type=float, default=0.05)
    script.add_argument("--serial", type=float, default=0.0)
    script.add_argument("--fail-at", type=int, default=-1)
    script.add_argument("--hang", action="store_true")
    script.add_argument("--stall-at", type=int, default=-1)
    script.add_argument("--until", default="", help="stalls until there is this file")
    script.add_argument("--chatter", type=int, default=0)
    script.add_argument("--report-every", type=int, default=0)
    script.add_argument("--fall", type=float, default=0.999)
    script.add_argument("--floor", type=float, default=0.0)
    script.add_argument("--noise", type=float, default=0.0)
    return found, script.parse_args(found.rest)


def claim(folder: Path, run: str) -> None:
    """As the real one: a folder has the checkpoints of one run."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder / "run"
    if owner.exists() and owner.read_text() != run:
        sys.exit(f"error: {folder} has the checkpoints of run {owner.read_text()!r}, this is run {run!r}")
    owner.write_text(run)


def main() -> int:
    options, script = parse(sys.argv[1:])
    if options.checkpoint:
        claim(Path(options.checkpoint), options.name)
    run = Run(options, script)
    signal.signal(signal.SIGTERM, lambda *_: setattr(run, "stop", "graceful"))
    run.serve()
    print(f"run {options.name} with {options.start} workers", flush=True)
    return run.train()


if __name__ == "__main__":
    sys.exit(main())
