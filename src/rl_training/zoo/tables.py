"""A report as tables of text, for pages and terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rl_training.zoo.drift import worst_severity
from rl_training.zoo.leaderboard import PROFILE_THRESHOLDS, Standing
from rl_training.zoo.manifests import manifest_of
from rl_training.zoo.reporting import Report

_SHOWN_THRESHOLDS = (0.25, 0.5, 0.75, 1.0)  # of the profiles; exports contain all


class Table(NamedTuple):
    """Text cells; `>` after a column's name aligns it to the right, `?` leaves the column out if it is empty."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def without_empty_columns(self) -> Table:
        """Return the table without optional columns that are empty."""
        kept = [
            position
            for position, column in enumerate(self.columns)
            if not column.endswith("?") or any(row[position] for row in self.rows)
        ]
        columns = tuple(self.columns[position].rstrip("?") for position in kept)
        return Table(self.title, columns, [tuple(row[position] for position in kept) for row in self.rows])


def report_tables(report: Report) -> list[Table]:
    """Return the tables of runs, unreadable runs and entries."""
    groups = [
        (
            place.entry.name,
            _label(report, place),
            place.entry.env_id,
            str(len(place.entry.by_seed)),
            *_figures(place),
            ", ".join(f"{count} {status}" for status, count in place.entry.status_counts.items()),
            worst_severity(place.drift) or "-",
        )
        for place in report.standings
    ]
    columns = ("entry", "label?", "environment", "seeds>", "IQM>", "95% interval", "note", "runs", "drift")
    return [
        run_table(report),
        unreadable_table(report),
        Table("Groups", columns, groups),
        *baseline_tables(report),
        *drift_tables(report),
    ]


def leaderboard_tables(report: Report) -> list[Table]:
    """Return one board per environment, the suites, and the comparison with a baseline."""
    return [
        *(board_table(report, env_id) for env_id in report.environments),
        *suite_tables(report),
        *baseline_tables(report),
        *drift_tables(report),
        unreadable_table(report),
    ]


def run_table(report: Report) -> Table:
    """Return the runs in the report's order."""
    names, counted = report.entry_names, report.counted
    rows = [
        (
            run.name,
            names[run.path],
            str(run.seed),
            run.status,
            f"{run.steps:,}",
            score_text(run.score),
            ", ".join(f"{name} {score_text(score)}" for name, score in run.task_scores.items()),
            "yes" if run.path in counted else "-",
            run.label or "",
            ", ".join(run.tags),
            run.error or "",
        )
        for run in report.runs
    ]
    columns = ("run", "entry", "seed>", "status", "steps>", "score>", "tasks?", "counted", "name?", "tags?", "error?")
    return Table("Runs", columns, rows)


def board_table(report: Report, env_id: str) -> Table:
    """Return the ranked entries of an environment, a suite or a task."""
    columns = (
        *(
            "rank>",
            "entry",
            "label?",
            "seeds>",
            "IQM>",
            "95% interval",
            "note",
            "median>",
            "mean>",
            "std>",
            "min>",
            "max>",
        ),
        *("normalised>", "median of tasks>?", "drift"),
    )
    rows = [
        (
            "-" if place.rank is None else str(place.rank),
            place.entry.name,
            _label(report, place),
            str(len(place.entry.by_seed)),
            *_figures(place),
            *_spread(place),
            _decimal(place.normalized),
            "" if place.normalized_median is None else _decimal(place.normalized_median),
            worst_severity(place.drift) or "-",
        )
        for place in report.board(env_id)
    ]
    return Table(board_title(report, env_id), columns, rows)


def suite_tables(report: Report) -> list[Table]:
    """Return the algorithms over suites, and their performance profiles."""
    suites = [
        (
            place.suite,
            place.algo,
            f"{len(place.environments)}/{place.suite_size}",
            str(place.seeds),
            _decimal(place.iqm),
            interval_text(place.interval, _decimal),
            place.note,
            _decimal(place.optimality_gap),
        )
        for place in report.suites
    ]
    profiles = [
        (
            place.suite,
            place.algo,
            *(_decimal(place.profile[PROFILE_THRESHOLDS.index(threshold)]) for threshold in _SHOWN_THRESHOLDS),
        )
        for place in report.suites
    ]
    columns = (
        *("suite", "algo", "environments>", "seeds>", "normalised IQM>", "95% interval"),
        *("note", "optimality gap>"),
    )
    profile_columns = ("suite", "algo", *(f"above {threshold}>" for threshold in _SHOWN_THRESHOLDS))
    return [Table("Suites", columns, suites), Table("Performance profiles", profile_columns, profiles)]


def unreadable_table(report: Report) -> Table:
    """Return the run directories that cannot be read."""
    return Table("Unreadable", ("run", "reason"), [(str(run.path), run.reason) for run in report.unreadable])


def baseline_tables(report: Report) -> list[Table]:
    """Return the comparison with the baseline, empty if there is none."""
    if report.baseline is None:
        return []
    rows = [
        (
            comparison.a.name,
            comparison.b.name,
            comparison.a.env_id,
            f"{len(comparison.a.scores)}, {len(comparison.b.scores)}",
            score_text(comparison.difference),
            interval_text(comparison.difference_interval, score_text),
            _decimal(comparison.probability),
            comparison.verdict,
        )
        for comparison in report.baseline.comparisons
    ]
    rows += [
        (entry.name, entry.name, entry.env_id, f"0, {len(entry.scores)}", "-", "-", "-", "missing")
        for entry in report.baseline.missing
    ]
    columns = ("entry", "baseline", "environment", "seeds", "difference>", "95% interval", "improvement>", "verdict")
    return [Table(f"Against {report.baseline.name}", columns, rows)]


def drift_tables(report: Report) -> list[Table]:
    """Return the drift from protocols and presets."""
    rows = [
        (place.entry.name, finding.severity, finding.sentence())
        for place in report.standings
        for finding in place.drift
    ]
    distinct = list(dict.fromkeys(rows))  # an entry has the same drift on every board of its suite
    return [Table("Drift", ("entry", "severity", "finding"), distinct)]


def board_title(report: Report, env_id: str) -> str:
    """Return an environment's title with its suite and the references of its scores."""
    scales = {None if (task := place.entry.task) is None else task.scale for place in report.board(env_id)}
    if len(scales) == 1 and (scale := scales.pop()) is not None:
        return f"{env_id} (random {scale[0]:g}, target {scale[1]:g})"
    manifest = manifest_of(env_id)
    reference = None if manifest is None else manifest.environments[env_id]
    if manifest is None or reference is None:
        return env_id if manifest is None else f"{env_id} ({manifest.suite})"
    return f"{env_id} ({manifest.suite}: random {reference.random:g}, {reference.kind} {reference.target:g})"


def _label(report: Report, place: Standing) -> str:
    """Return the label of an entry, empty if it is its name."""
    label = report.label(place.entry)
    return "" if label == place.entry.name else label


def _figures(place: Standing) -> tuple[str, str, str]:
    if place.summary is None:
        return "-", "-", "no score"
    return score_text(place.summary.iqm), interval_text(place.summary.interval, score_text), place.summary.note


def _spread(place: Standing) -> tuple[str, ...]:
    summary = place.summary
    if summary is None:
        return ("-",) * 5
    return tuple(map(score_text, (summary.median, summary.mean, summary.std, summary.low, summary.high)))


def score_text(value: float | None) -> str:
    """Return a score with a suitable number of digits."""
    if value is None:
        return "-"
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def interval_text(interval: tuple[float, float] | None, shown: Callable[[float], str]) -> str:
    """Return the two ends of an interval, each formatted by `shown`."""
    return "-" if interval is None else f"{shown(interval[0])} to {shown(interval[1])}"
