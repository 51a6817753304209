"""The command of the zoo, shared by `axiomrl` and `axiomrl-zoo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rl_training.cli_output import Output
from rl_training.cli_report import BaselineGate, DriftGate, Rendering, RunChoice
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.zoo.catalogue import PresetEntry

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

        _refuse_options_about_runs(choice, rendering, baseline, drift)
        presets = [entry for entry in list_presets() if _passes(entry, choice)]
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


def _passes(entry: PresetEntry, choice: RunChoice) -> bool:
    filters = choice.filters()
    wanted = (
        (filters.algo, entry.algo),
        (filters.env, entry.env_id),
        (filters.preset, entry.name),
        (filters.suite, entry.suite),
    )
    return all(not values or value in values for values, value in wanted)


def _refuse_options_about_runs(
    choice: RunChoice, rendering: Rendering, baseline: BaselineGate, drift: DriftGate
) -> None:
    given = {
        "--runs": choice.runs,
        "--tag": choice.tag,
        "--status": choice.status,
        "--min-seeds": choice.min_seeds,
        "--output-format": rendering.output_format,
        "--output": rendering.output_file,
        "--baseline": baseline.baseline,
        "--fail-on-regression": baseline.fail_on_regression,
        "--fail-on-manifest-drift": drift.fail_on_manifest_drift,
    }
    for flag, value in given.items():
        if value:
            raise ConfigError(f"{flag} is about runs; add --format report or --format leaderboard")
