"""A report as tables of text for people, which every page and every terminal shows alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rl_training.zoo.drift import worst_severity
from rl_training.zoo.leaderboard import PROFILE_THRESHOLDS, Standing
from rl_training.zoo.manifests import manifest_of
from rl_training.zoo.reporting import Report

_SHOWN_THRESHOLDS = (0.25, 0.5, 0.75, 1.0)  # of the profiles; exports hold them all


class Table(NamedTuple):
    """Cells for people; `>` after a column's name aligns it to the right, `?` leaves it out while it is empty."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def report_tables(report: Report) -> list[Table]:
    """Return the runs, what could not be read, and the groups they form."""
    names, counted = report.entry_names, report.counted
    runs = [
        (
            run.name,
            names[run.path],
            str(run.seed),
            run.status,
            f"{run.steps:,}",
            _score(run.score),
            "yes" if run.path in counted else "-",
            ", ".join(run.tags),
            run.error or "",
        )
        for run in report.runs
    ]
    groups = [
        (
            place.entry.name,
            place.entry.env_id,
            str(len(place.entry.by_seed)),
            *_figures(place),
            ", ".join(f"{count} {status}" for status, count in place.entry.status_counts.items()),
            worst_severity(place.drift) or "-",
        )
        for place in report.standings
    ]
    columns = ("run", "entry", "seed>", "status", "steps>", "score>", "counted", "tags?", "error?")
    group_columns = ("entry", "environment", "seeds>", "IQM>", "95% interval", "note", "runs", "drift")
    return [
        Table("Runs", columns, runs),
        _unreadable_table(report),
        Table("Groups", group_columns, groups),
        *_baseline_tables(report),
        *_drift_tables(report),
    ]


def leaderboard_tables(report: Report) -> list[Table]:
    """Return one board per environment, the suites, and the comparison with a baseline."""
    return [
        *(_board_table(report, env_id) for env_id in report.environments),
        *_suite_tables(report),
        *_baseline_tables(report),
        *_drift_tables(report),
        _unreadable_table(report),
    ]


def _board_table(report: Report, env_id: str) -> Table:
    columns = (
        *("rank>", "entry", "seeds>", "IQM>", "95% interval", "note", "median>", "mean>", "std>", "min>", "max>"),
        *("normalised>", "drift"),
    )
    rows = [
        (
            "-" if place.rank is None else str(place.rank),
            place.entry.name,
            str(len(place.entry.by_seed)),
            *_figures(place),
            *_spread(place),
            _decimal(place.normalized),
            worst_severity(place.drift) or "-",
        )
        for place in report.board(env_id)
    ]
    return Table(_board_title(env_id), columns, rows)


def _suite_tables(report: Report) -> list[Table]:
    suites = [
        (
            place.suite,
            place.algo,
            f"{len(place.environments)}/{place.suite_size}",
            str(place.seeds),
            _decimal(place.iqm),
            _interval(place.interval, _decimal),
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


def _unreadable_table(report: Report) -> Table:
    return Table("Unreadable", ("run", "reason"), [(str(run.path), run.reason) for run in report.unreadable])


def _baseline_tables(report: Report) -> list[Table]:
    if report.baseline is None:
        return []
    rows = [
        (
            comparison.a.name,
            comparison.b.name,
            comparison.a.env_id,
            f"{len(comparison.a.scores)}, {len(comparison.b.scores)}",
            _score(comparison.difference),
            _interval(comparison.difference_interval, _score),
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


def _drift_tables(report: Report) -> list[Table]:
    rows = [
        (place.entry.name, finding.severity, finding.sentence())
        for place in report.standings
        for finding in place.drift
    ]
    return [Table("Drift", ("entry", "severity", "finding"), rows)]


def _board_title(env_id: str) -> str:
    manifest = manifest_of(env_id)
    reference = None if manifest is None else manifest.environments[env_id]
    if manifest is None or reference is None:
        return env_id if manifest is None else f"{env_id} ({manifest.suite})"
    return f"{env_id} ({manifest.suite}: random {reference.random:g}, {reference.kind} {reference.target:g})"


def _figures(place: Standing) -> tuple[str, str, str]:
    if place.summary is None:
        return "-", "-", "no score"
    return _score(place.summary.iqm), _interval(place.summary.interval, _score), place.summary.note


def _spread(place: Standing) -> tuple[str, ...]:
    summary = place.summary
    if summary is None:
        return ("-",) * 5
    return tuple(map(_score, (summary.median, summary.mean, summary.std, summary.low, summary.high)))


def _score(value: float | None) -> str:
    if value is None:
        return "-"
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(interval: tuple[float, float] | None, shown: Callable[[float], str]) -> str:
    return "-" if interval is None else f"{shown(interval[0])} to {shown(interval[1])}"
