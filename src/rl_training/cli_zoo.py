"""The command of the zoo, shared by `axiomrl` and `axiomrl-zoo`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rl_training.cli_output import Output
from rl_training.cli_report import BaselineGate, DriftGate, Rendering, RunChoice

Format = Annotated[
    Literal["table", "commands", "report", "leaderboard"],
    typer.Option(
        "--format",
        help="The presets as a table or as training commands; or their runs as a report or a leaderboard.",
    ),
]


def zoo(
    output: Output,
    choice: RunChoice,
    rendering: Rendering,
    baseline: BaselineGate,
    drift: DriftGate,
    format: Format = "table",
) -> int:
    """List the packaged presets, or show what their runs achieved."""
    if format == "table" or format == "commands":
        from rl_training.zoo.catalogue import as_commands, as_table, catalogue_record, list_presets

        presets = list_presets(algos=choice.algo or (), envs=choice.env or (), suites=choice.suite or ())
        output.show(catalogue_record(presets), as_table(presets) if format == "table" else as_commands(presets))
        return 0
    baseline.check()
    from rl_training.zoo.reporting import build_report

    built = build_report(
        choice.paths(),
        choice.filters(),
        baseline=baseline.baseline,
        fail_on_regression=baseline.fail_on_regression,
        fail_on_drift=drift.threshold,
        zoo_only=True,
    )
    return rendering.show(built, format, output)
