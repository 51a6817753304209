"""A report as one HTML file: no network, no script, no other file but the films of runs.

The same report always gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from markupsafe import Markup

from rl_training.experiment.storage.printing import printable
from rl_training.zoo.leaderboard import PROFILE_THRESHOLDS, Standing, SuiteStanding
from rl_training.zoo.page.curves import (
    METRIC_LABELS,
    Axis,
    Curve,
    Histories,
    further_curve,
    learning_curve,
    metric_label,
    read_histories,
    shorter_ranges,
)
from rl_training.zoo.page.films import MOST_ENTRIES, chosen, films_of_entry
from rl_training.zoo.page.layout import Figure, Reloading, Section, link, render_sections, status_word
from rl_training.zoo.page.places import Beside, Places
from rl_training.zoo.page.svg_charts import Spread, interval_chart, legend_sign, line_chart
from rl_training.zoo.quantities import Quantity, quantity_of, range_text, seed_text
from rl_training.zoo.reporting import Report
from rl_training.zoo.run_files import STATUSES
from rl_training.zoo.tables import (
    Table,
    baseline_tables,
    board_table,
    board_title,
    drift_tables,
    run_table,
    suite_tables,
    unreadable_table,
)

_AXES: tuple[Axis, ...] = ("steps", "time")
_CLASS_OF = {"eval_return_mean": "of-eval", "train_return_mean": "of-train"}
_FURTHER = "of-further"
# Limits on a section's further metrics, so that browsers can open a page of hundreds of runs.
_MOST_METRICS = 24
_MOST_CURVES = 12
_LONGEST_METRIC = 40  # characters


def render_page(
    report: Report,
    kind: Literal["report", "leaderboard"],
    folder: Path,
    *,
    places: Places | None = None,
    reloading: Reloading | None = None,
) -> str:
    """Return the page; run directories and films are linked relative to `folder`, where it will be, or by `places`."""
    places = places or Beside(folder)
    histories = read_histories((place.entry for place in report.standings), further=True)
    boards = [
        _board_section(report, env_id, histories, number, places)
        for number, env_id in enumerate(report.environments, 1)
    ]
    sections = [
        *boards,
        *_suite_sections(report),
        *([_run_section(report, places)] if kind == "report" and report.runs else []),
        *_further_sections(report),
        *_notes(report, histories),
    ]
    return render_sections(
        f"AxiomRL {kind}",
        _summary(report),
        sections,
        metrics=_metric_choices(histories) if boards else [],
        reloading=reloading,
    )


def _summary(report: Report) -> str:
    if not report.runs and not report.unreadable:
        return "No runs."
    counts = {status: sum(run.status == status for run in report.runs) for status in STATUSES}
    parts = [f"{count} {status}" for status, count in counts.items() if count]
    parts += [f"{len(report.unreadable)} unreadable"] if report.unreadable else []
    return f"Runs: {', '.join(parts)}. Environments: {len(report.environments)}. Entries: {len(report.standings)}."


def _metric_choices(histories: Histories) -> list[tuple[str, str, bool]]:
    """Return the metrics that can be selected; evaluations come first unless no run has two of them."""
    lengths = [(key, len(points)) for run in histories.points.values() for key, points in run.items()]
    evaluated = any(key.startswith("eval_") and length > 1 for key, length in lengths)
    first = "eval_return_mean" if evaluated else "train_return_mean"
    choices = [(_CLASS_OF[metric], words, metric == first) for metric, words in METRIC_LABELS.items()]
    return [*choices, (_FURTHER, "losses and rates", False)]


# -- environments ----------------------------------------------------------------------------------


def _board_section(report: Report, env_id: str, histories: Histories, number: int, places: Places) -> Section:
    board = report.board(env_id)
    labels = [report.label(place.entry) for place in board]
    figures = [
        figure
        for metric in METRIC_LABELS
        for axis in _AXES
        for figure in _curve_figures(board, labels, histories, metric, axis)
    ]
    figures += _further_figures(board, labels, histories)
    if any(place.summary is not None for place in board):
        quantity = Quantity(metric_label(board[0].entry, "eval_return_mean"))
        rows = [
            Spread(position, labels[position], place.entry.scores, place.summary.iqm, place.summary.interval)
            for position, place in enumerate(board)
            if place.summary is not None
        ]
        chart = interval_chart(rows, f"Final scores on {env_id}; the table below holds the figures", quantity)
        figures.append(Figure("Final scores: seeds, interquartile mean, 95% interval", chart))
    return Section(
        anchor=f"environment-{number}",
        name=env_id,
        about=board_title(report, env_id).removeprefix(env_id).strip(),
        legend=[
            (legend_sign(position), labels[position], seed_text(len(place.entry.by_seed)))
            for position, place in enumerate(board)
        ],
        figures=figures,
        tables=[_signed(board_table(report, env_id).without_empty_columns()._replace(title="Leaderboard"))],
        differences=_differences(report, env_id),
        films=_films(board, labels, places),
    )


def _films(board: Sequence[Standing], labels: Sequence[str], places: Places) -> list[tuple[str, str]]:
    """Return some films of one run of each entry, with what they show."""
    shown = []
    found = [(label, films_of_entry(place.entry)) for place, label in zip(board, labels, strict=True)]
    for label, of_run in [(label, of_run) for label, of_run in found if of_run is not None][:MOST_ENTRIES]:
        run, films = of_run
        for film in chosen(films):
            caption = f"{label}, seed {run.seed}, after {film.step:,} steps"
            shown.append((caption, places.film(film.path)))
    return shown


def _curve_figures(
    board: Sequence[Standing], labels: Sequence[str], histories: Histories, metric: str, axis: Axis
) -> list[Figure]:
    """Return the charts of a metric."""
    curves = [
        learning_curve(place.entry, histories, metric, axis, label=label)
        for place, label in zip(board, labels, strict=True)
    ]
    env_id, words = board[0].entry.env_id, metric_label(board[0].entry, metric)
    caption = f"{words.capitalize()} over {'environment steps' if axis == 'steps' else 'training time'}"
    classes = f"{_CLASS_OF[metric]} by-{axis}"
    if all(curve.empty for curve in curves):
        return [Figure(caption, f"No run has logged its {words}.", classes)]
    return _charts(caption, curves, env_id, words, axis, classes)


def _charts(caption: str, curves: list[Curve], env_id: str, words: str, axis: Axis, classes: str) -> list[Figure]:
    """Return the chart of some curves, and further charts of their beginnings if some are much shorter."""
    shown = [(caption, curves)] + [
        (f"{caption}, {range_text(axis, end)}", [curve.until(end) for curve in curves])
        for end in shorter_ranges(curves)
    ]
    return [
        Figure(title, line_chart(drawn, f"{title} on {env_id}", quantity_of(axis, drawn), Quantity(words)), classes)
        for title, drawn in shown
    ]


def _further_figures(board: Sequence[Standing], labels: Sequence[str], histories: Histories) -> list[Figure]:
    """Return small charts of the other numbers in training rows: losses, rates, resolved schedules."""
    entry = board[0].entry
    lines = [histories.further.get(run.path, {}) for place in board for run in place.entry.runs]
    names = [name for name in dict.fromkeys(key for line in lines for key in line) if _is_further(name)]
    if entry.task is not None:  # losses are those of the suite
        return [Figure("Losses and rates", f"Those of {entry.trained_on} are on the board of the suite.", _FURTHER)]
    if not names:
        return [Figure("Losses and rates", "No run has logged any.", _FURTHER)]
    shown = list(zip(board, labels, strict=True))[:_MOST_CURVES]
    figures = []
    for name in sorted(names, key=lambda name: ("loss" not in name, names.index(name)))[:_MOST_METRICS]:
        curves = [further_curve(place.entry, histories, name, label) for place, label in shown]
        if not all(curve.empty for curve in curves):
            figures += _charts(name, curves, entry.env_id, name, "steps", _FURTHER)
    left_out = [
        *([f"the first {_MOST_CURVES} of {len(board)} entries"] if len(board) > _MOST_CURVES else []),
        *([f"{_MOST_METRICS} of {len(names)} metrics"] if len(names) > _MOST_METRICS else []),
    ]
    if left_out:
        content = f"Shown are {' and '.join(left_out)}; `axiomrl plot --metric NAME` draws any of them."
        figures.append(Figure("Losses and rates", content, _FURTHER))
    return figures


def _is_further(name: str) -> bool:
    """Return whether a number of training rows gets a chart: not counters, times and metrics of single tasks."""
    counted = name in ("global_step", "update_count") or name.startswith(("train_return", "eval_", "time_"))
    return not counted and "/" not in name and len(name) <= _LONGEST_METRIC and name.isprintable()


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


def _run_section(report: Report, places: Places) -> Section:
    table = run_table(report).without_empty_columns()
    # The name is long and comes late: a phone shows the first columns.
    order = sorted(range(len(table.columns)), key=lambda column: _RUN_ORDER.index(table.columns[column]))
    decorated = {"run": lambda run: link(run.path, places), "status": lambda run: status_word(run.status)}
    rows = [
        tuple(
            decorated[table.columns[column]](run) if table.columns[column] in decorated else row[column]
            for column in order
        )
        for run, row in zip(report.runs, table.rows, strict=True)
    ]
    return Section("runs", "Runs", tables=[Table("Runs", tuple(table.columns[column] for column in order), rows)])


_RUN_ORDER = ("status", "entry", "seed>", "score>", "tasks", "steps>", "counted", "name", "run", "error", "tags")


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
