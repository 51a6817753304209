"""The commands of the zoo, shared by `axiomrl` and `axiomrl-zoo`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rl_training.cli_output import Output

Format = Annotated[
    Literal["table", "commands"], typer.Option("--format", help="A table, or one training command per preset.")
]


def zoo(output: Output, format: Format = "table") -> int:
    """List the packaged presets and the extras they need."""
    from rl_training.zoo.catalogue import as_commands, as_table, list_presets

    presets = list_presets()
    lines = as_table(presets) if format == "table" else as_commands(presets)
    output.show({"presets": [preset._asdict() for preset in presets]}, lines)
    return 0
