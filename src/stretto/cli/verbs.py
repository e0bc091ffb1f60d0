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


VERBS: dict[str, Verb] = {
    "run": Verb("stretto.cli.run", "Run a training script with a number of workers that may change."),
    "ps": Verb("stretto.cli.ps", "List runs: state, workers, step, speed, loss."),
    "scale": Verb("stretto.cli.scale", "Change the number of workers of a run, while it trains."),
    "logs": Verb("stretto.cli.logs", "Show what workers print."),
    "stop": Verb("stretto.cli.stop", "End a run at its next step boundary, or now."),
    "show": Verb("stretto.cli.show", "Show one run: what was asked, how it went, every change with its pause."),
    "audit": Verb("stretto.cli.audit", "Prove from the journal that every sample was in exactly one committed step."),
    "plot": Verb("stretto.cli.plot", "Draw loss curves, workers over time and events into a PNG.", extra="plot"),
    "version": Verb("stretto.cli.version", "Print the version."),
}
