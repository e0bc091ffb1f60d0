"""The verbs, one line each: where each lives and what help says about it. Nothing is imported before it is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    module: str
    """Has a function `command` with typer's annotations, or a `typer.Typer` named `app`."""
    help: str
    extra: str = ""
    """The extra that it needs, named when an import fails."""
    store: bool = False
    """It can also be asked of a job on several hosts, by its store (`cli/abroad.py`)."""
    server: str = ""
    """The function of `cli/jobs.py` that does the same for a job of the server."""


VERBS: dict[str, Verb] = {
    "run": Verb("stretto.cli.run", "Run a training script with a number of workers that may change."),
    "resume": Verb("stretto.cli.resume", "Go on with a run from its last complete checkpoint.", server="resume"),
    "checkpoints": Verb("stretto.cli.checkpoints", "List a run's checkpoints: step, size, complete or not, age."),
    "export": Verb("stretto.cli.export", "Write a checkpoint's weights as one safetensors file."),
    "drain": Verb("stretto.cli.drain", "Let an agent's workers go at the next step boundary.", store=True),
    "ps": Verb("stretto.cli.ps", "List runs: state, workers, step, speed, loss.", store=True, server="ps"),
    "scale": Verb("stretto.cli.scale", "Change the number of workers of a run, while it trains.", store=True, server="scale"),
    "logs": Verb("stretto.cli.logs", "Show what workers print.", store=True, server="logs"),
    "stop": Verb("stretto.cli.stop", "End a run at its next step boundary, or now.", store=True),
    "attach": Verb("stretto.cli.attach", "Show again what the hosts of a job say that was started with --hosts."),
    "show": Verb("stretto.cli.show", "Show one run: what was asked, how it went, every change with its pause.", server="one"),
    "explain": Verb("stretto.cli.explain", "Say why a run had the batch sizes and the workers that it had.", server="explain"),
    "audit": Verb("stretto.cli.audit", "Prove from the journal that every sample was in exactly one committed step."),
    "plot": Verb("stretto.cli.plot", "Draw loss curves, workers over time and events into a PNG.", extra="plot"),
    "simulate": Verb("stretto.cli.simulate", "What a policy would make of a workload, on virtual time.", extra="scheduling"),
    "serve": Verb("stretto.cli.serve", "Run the job server: queue, scheduler, API, dashboard.", extra="server"),
    "submit": Verb("stretto.cli.submit", "Give a job to the server: a job file, or a command.", extra="server"),
    "pause": Verb("stretto.cli.pause", "Set a job of the server aside; it gives its slots back.", extra="server"),
    "cancel": Verb("stretto.cli.cancel", "End a job of the server.", extra="server"),
    "rm": Verb("stretto.cli.rm", "Forget ended jobs of the server and remove their folders.", extra="server"),
    "events": Verb("stretto.cli.events", "What happened to a job of the server, or to all.", extra="server"),
    "nodes": Verb("stretto.cli.nodes", "The server's nodes; take one out of use.", extra="server"),
    "policies": Verb("stretto.cli.policies", "Who decides on the server; what another policy would have done.", extra="server"),
    "tokens": Verb("stretto.cli.tokens", "Who may use the server.", extra="server"),
    "top": Verb("stretto.cli.top", "Jobs and slots of the server, live.", extra="server"),
    "version": Verb("stretto.cli.version", "Print the version; so does `stretto --version`."),
}
