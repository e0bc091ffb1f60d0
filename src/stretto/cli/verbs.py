"""The verbs, one line each: where each lives and what help says about it. Nothing is imported before it is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of the command line."""

    target: str
    """`module:function` with typer's annotations, or `module:app` for a `typer.Typer`; below `stretto.cli`."""
    help: str
    extra: str = ""
    """The extra that it needs, named when an import fails."""
    script: bool = False
    """Its options end at the script: everything behind it is the script's own."""

    @property
    def module(self) -> str:
        """The module to import."""
        return f"stretto.cli.{self.target.partition(':')[0]}"

    @property
    def function(self) -> str:
        """The name to take from the module."""
        return self.target.partition(":")[2]


VERBS: dict[str, Verb] = {
    "run": Verb("run:command", "Run a training script with a number of workers that may change.", script=True),
    "resume": Verb("resume:command", "Go on with a run from its last complete checkpoint."),
    "checkpoints": Verb("checkpoints:checkpoints", "List a run's checkpoints: step, size, complete or not, age."),
    "export": Verb("checkpoints:export", "Write a checkpoint's weights as one safetensors file."),
    "drain": Verb("control:drain", "Let an agent's workers go at the next step boundary."),
    "ps": Verb("status:ps", "List runs: state, workers, step, speed, loss."),
    "scale": Verb("control:scale", "Change the number of workers of a run, while it trains."),
    "logs": Verb("logs:command", "Show what workers print."),
    "stop": Verb("control:stop", "End a run at its next step boundary, or now."),
    "attach": Verb("hosts:attach", "Show again what the hosts of a job say that was started with --hosts."),
    "show": Verb("status:show", "Show one run: what was asked, how it went, every change with its pause."),
    "explain": Verb("explain:command", "Say why a run had the batch sizes and the workers that it had."),
    "audit": Verb("audit:command", "Prove from the journal that every sample was in exactly one committed step."),
    "plot": Verb("plot:command", "Draw loss curves, workers over time and events into a PNG.", extra="plot"),
    "simulate": Verb("simulate:command", "What a policy would make of a workload, on virtual time.", extra="scheduling"),
    "serve": Verb("serve:command", "Run the job server: queue, scheduler, API, dashboard.", extra="server"),
    "submit": Verb("submit:command", "Give a job to the server: a job file, or a command.", extra="server"),
    "pause": Verb("control:pause", "Set a job of the server aside; it gives its slots back.", extra="server"),
    "cancel": Verb("control:cancel", "End a job of the server.", extra="server"),
    "rm": Verb("control:remove", "Forget ended jobs of the server and remove their folders.", extra="server"),
    "events": Verb("server_views:events", "What happened to a job of the server, or to all.", extra="server"),
    "nodes": Verb("server_views:nodes", "The server's nodes; take one out of use.", extra="server"),
    "policies": Verb("server_views:policies", "Who decides on the server; what another policy would have done.", extra="server"),
    "tokens": Verb("server_views:tokens", "Who may use the server.", extra="server"),
    "top": Verb("top:command", "Jobs and slots of the server, live.", extra="server"),
    "version": Verb("version:command", "Print the version; so does `stretto --version`."),
}
