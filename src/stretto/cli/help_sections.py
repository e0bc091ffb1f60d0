"""A verb's help: what everybody needs first, and what belongs together under a heading of its own."""

from __future__ import annotations

from typing import Any

import typer.core

from stretto.cli.scripts import no_module
from stretto.cli.usage_errors import Misuse
from stretto.core.errors import UsageError

SECTIONS = {
    "Checkpoints": ("checkpoint", "checkpoint_every", "keep"),
    "Sizing": ("autoscale", "price", "worth", "stragglers"),
    "Several hosts": (
        "store",
        "job",
        "hosts",
        "slots",
        "interface",
        "host",
        "lease",
        "fence",
        "store_token",
        "store_ca",
        "store_cert",
        "store_key",
    ),
    "Restart mode": ("restart_mode", "nproc_per_node", "nnodes", "standalone"),
    "Job server": ("server", "pin"),
}
"""Options of the verbs that train or look at runs, by their parameters' names; all others are plain options."""


class Sectioned(typer.core.TyperCommand):
    """A verb with many options."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Misuse as error:
            # What follows a module's name is the module's own, and no option of ours that is misspelt.
            flag = str(getattr(error, "option_name", ""))
            if "-m" in words[:-1] and flag in words and words.index("-m") < words.index(flag) and self.name == "run":
                raise UsageError(no_module(words[words.index("-m") + 1])) from None
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        titles = {name: title for title, names in SECTIONS.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Options", *SECTIONS)}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else titles.get(parameter.name or "", "Options")
                rows[title].append(row)
        for title, found in rows.items():
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)
