"""A report as one HTML file that needs nothing else: no network, no script, no other file.

Everything that comes from runs passes through the template, which escapes it, or through `Markup.format`, which does
the same. The same report always gives the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import jinja2
import numpy as np
from markupsafe import Markup

from rl_training.zoo.curves import (
    METRIC_LABELS,
    Axis,
    Curve,
    Histories,
    Metric,
    learning_curve,
    metric_label,
    read_histories,
)
from rl_training.zoo.leaderboard import PROFILE_THRESHOLDS, Standing, SuiteStanding
from rl_training.zoo.palette import DARK_PAPER, LIGHT_PAPER, STYLES
from rl_training.zoo.quantities import Quantity, quantity_of, seed_text
from rl_training.zoo.reporting import Report
from rl_training.zoo.run_index import STATUSES
from rl_training.zoo.svg_charts import interval_chart, legend_sign, line_chart
from rl_training.zoo.tables import (
    Table,
    baseline_tables,
    board_table,
    board_title,
    drift_tables,
    printable,
    run_table,
    suite_tables,
    unreadable_table,
)

_AXES: tuple[Axis, ...] = ("steps", "time")
_CLASS_OF: dict[Metric, str] = {"eval_return_mean": "of-eval", "train_return_mean": "of-train"}


class Figure(NamedTuple):
    """One chart of a section."""

    caption: str
    content: Markup | str
    classes: str = ""


class Section(NamedTuple):
    """One part of the page; what is empty is not shown."""

    anchor: str
    name: str
    about: str = ""
    """What the heading adds to the name."""
    sentences: Sequence[str] = ()
    legend: Sequence[tuple[Markup, str, str]] = ()
    """Sign, name and note of each curve."""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    differences: Table | None = None
    """Settings by entry, folded where they are many."""


def render_page(report: Report, kind: Literal["report", "leaderboard"], folder: Path) -> str:
    """Return the page; links to run directories are relative to `folder`, where it will lie."""
    histories = read_histories(place.entry for place in report.standings)
    boards = [_board_section(report, env_id, histories, number) for number, env_id in enumerate(report.environments, 1)]
    sections = [
        *boards,
        *_suite_sections(report),
        *([_run_section(report, folder)] if kind == "report" and report.runs else []),
        *_further_sections(report),
        *_notes(report, histories),
    ]
    page = _template().render(
        title=f"AxiomRL {kind}",
        summary=_summary(report),
        style=_style(),
        metrics=_metric_choices(histories) if boards else [],
        sections=sections,
    )
    return page + "\n"


@cache
def _template() -> jinja2.Template:
    # What is not printable, such as half a character, could not be written to a file either.
    def shown(value: Any) -> Any:
        return printable(value) if type(value) is str else value

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=shown)
    return environment.from_string(_packaged("report.html.jinja"))


@cache
def _style() -> Markup:
    series = [f".series-{number} {{ --series: var(--series-{number}); }}" for number in range(len(STYLES))]
    light = [f"--series-{number}: {style.light};" for number, style in enumerate(STYLES)]
    dark = [f"--series-{number}: {style.dark};" for number, style in enumerate(STYLES)]
    return Markup(
        f":root {{ --paper: {LIGHT_PAPER}; {' '.join(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --paper: {DARK_PAPER}; {' '.join(dark)} }} }}\n"
        + "\n".join(series)
        + "\n"
        + _packaged("report.css")
    )


def _packaged(name: str) -> str:
    return resources.files("rl_training.zoo").joinpath(name).read_text(encoding="utf-8")


def _summary(report: Report) -> str:
    if not report.runs and not report.unreadable:
        return "No runs."
    counts = {status: sum(run.status == status for run in report.runs) for status in STATUSES}
    parts = [f"{count} {status}" for status, count in counts.items() if count]
    parts += [f"{len(report.unreadable)} unreadable"] if report.unreadable else []
    return f"Runs: {', '.join(parts)}. Environments: {len(report.environments)}. Entries: {len(report.standings)}."


def _metric_choices(histories: Histories) -> list[tuple[str, str, bool]]:
    """Return the metrics that can be chosen; evaluations come first unless no run has two of them."""
    lengths = [(key, len(points)) for run in histories.points.values() for key, points in run.items()]
    evaluated = any(key.startswith("eval_") and length > 1 for key, length in lengths)
    first: Metric = "eval_return_mean" if evaluated else "train_return_mean"
    return [(_CLASS_OF[metric], words, metric == first) for metric, words in METRIC_LABELS.items()]


# -- environments ----------------------------------------------------------------------------------


def _board_section(report: Report, env_id: str, histories: Histories, number: int) -> Section:
    board = report.board(env_id)
    figures = [_curve_figure(board, histories, metric, axis) for metric in METRIC_LABELS for axis in _AXES]
    if any(place.summary is not None for place in board):
        quantity = Quantity(metric_label(board[0].entry, "eval_return_mean"))
        chart = interval_chart(board, f"Final scores on {env_id}; the table below holds the figures", quantity)
        figures.append(Figure("Final scores: seeds, interquartile mean, 95% interval", chart))
    return Section(
        anchor=f"environment-{number}",
        name=env_id,
        about=board_title(report, env_id).removeprefix(env_id).strip(),
        legend=[
            (legend_sign(position), place.entry.name, seed_text(len(place.entry.by_seed)))
            for position, place in enumerate(board)
        ],
        figures=figures,
        tables=[_signed(board_table(report, env_id).without_empty_columns()._replace(title="Leaderboard"))],
        differences=_differences(report, env_id),
    )


def _curve_figure(board: Sequence[Standing], histories: Histories, metric: Metric, axis: Axis) -> Figure:
    curves = [learning_curve(place.entry, histories, metric, axis) for place in board]
    env_id, words = board[0].entry.env_id, metric_label(board[0].entry, metric)
    over = "environment steps" if axis == "steps" else "training time"
    caption = f"{words.capitalize()} over {over}"
    content: Markup | str = f"No run has logged its {words}."
    if not all(curve.empty for curve in curves):
        content = line_chart(curves, f"{caption} on {env_id}", quantity_of(axis, curves), Quantity(words))
    return Figure(caption, content, f"{_CLASS_OF[metric]} by-{axis}")


def _signed(table: Table) -> Table:
    """Return a board's table with the sign of its curve before each entry."""
    entry = table.columns.index("entry")
    rows = [
        (*row[:entry], legend_sign(position) + Markup(" {}").format(printable(row[entry])), *row[entry + 1 :])
        for position, row in enumerate(table.rows)
    ]
    return table._replace(rows=rows)


def _differences(report: Report, env_id: str) -> Table | None:
    differences = report.differences(env_id)
    names = [place.entry.name for place in report.board(env_id)]
    rows = [
        (key, *("-" if value is None else value if isinstance(value, str) else json.dumps(value) for value in values))
        for key, values in differences.items()
    ]
    return Table("Settings that differ", ("setting", *names), rows) if rows else None


# -- suites, runs and the rest ---------------------------------------------------------------------


def _suite_sections(report: Report) -> list[Section]:
    suites, profiles = suite_tables(report)
    found = []
    for number, suite in enumerate(dict.fromkeys(place.suite for place in report.suites), 1):
        places = [place for place in report.suites if place.suite == suite]
        chart = line_chart(
            [_profile(place) for place in places],
            f"Performance profiles of {suite}; the table below holds figures",
            Quantity("normalised score", limits=(PROFILE_THRESHOLDS[0], PROFILE_THRESHOLDS[-1])),
            Quantity("share of runs above it", limits=(0.0, 1.0)),
        )
        found.append(
            Section(
                anchor=f"suite-{number}",
                name=f"Suite {suite}",
                sentences=["Scores are normalised: 0 is a random policy, 1 the target of the suite's manifest."],
                legend=[
                    (legend_sign(position), place.algo, f"{len(place.environments)}/{place.suite_size} environments")
                    for position, place in enumerate(places)
                ],
                figures=[Figure("Performance profiles, 95% interval", chart)],
                tables=[_only(suites, suite)._replace(title="Aggregates"), _only(profiles, suite)],
            )
        )
    return found


def _profile(place: SuiteStanding) -> Curve:
    low, high = place.profile_band or (None, None)
    return Curve(place.algo, place.seeds, np.array(PROFILE_THRESHOLDS), np.array(place.profile), low, high)


def _only(table: Table, suite: str) -> Table:
    return table._replace(columns=table.columns[1:], rows=[row[1:] for row in table.rows if row[0] == suite])


def _run_section(report: Report, folder: Path) -> Section:
    table = run_table(report).without_empty_columns()
    # The name, which is long, comes late: a phone shows the first columns.
    order = sorted(range(len(table.columns)), key=lambda column: _RUN_ORDER.index(table.columns[column]))
    decorated = {"run": lambda run: _link(run.path, folder), "status": lambda run: _status(run.status)}
    rows = [
        tuple(
            decorated[table.columns[column]](run) if table.columns[column] in decorated else row[column]
            for column in order
        )
        for run, row in zip(report.runs, table.rows, strict=True)
    ]
    return Section("runs", "Runs", tables=[Table("Runs", tuple(table.columns[column] for column in order), rows)])


_RUN_ORDER = ("status", "entry", "seed>", "score>", "tasks", "steps>", "counted", "run", "error", "tags")


def _status(status: str) -> Markup:
    return Markup('<span class="status {0}">{0}</span>').format(status)


def _link(path: Path, folder: Path) -> Markup:
    """Return a link to a directory: relative where there is a way from the page's folder."""
    try:
        target = quote(os.fsencode(Path(os.path.relpath(path, folder)).as_posix()))
    except ValueError:  # another drive
        target = Path(os.path.abspath(path)).as_uri()
    return Markup('<a href="{}/">{}</a>').format(target, printable(path.name))


def _further_sections(report: Report) -> list[Section]:
    tables = [*baseline_tables(report), *drift_tables(report), unreadable_table(report)]
    return [
        Section(f"table-{number}", table.title, tables=[table])
        for number, table in enumerate((table for table in tables if table.rows), 1)
    ]


def _notes(report: Report, histories: Histories) -> list[Section]:
    reasons = [f"{gate.name}: {reason}" for gate in report.gates for reason in gate.reasons]
    sentences = [*report.notices, *reasons, *histories.problems]
    return [Section("notes", "Notes", sentences=sentences)] if sentences else []
