"""A study's report as tables of text, for pages and terminals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rl_training.experiment.storage.printing import duration
from rl_training.experiment.tuning.confirmation import Side
from rl_training.experiment.tuning.trials import settings_text
from rl_training.zoo.studies.parameters import SearchedParameter, value_text
from rl_training.zoo.studies.report import StudyReport, TrialResult
from rl_training.zoo.tables import Table, interval_text, score_text

FLATTERING = "in the search, which flatters the best"
_NARROWEST = 24  # characters of settings
OBJECTIVES = {"final": "final evaluation return", "auc": "mean return over the course of training"}


def result_table(report: StudyReport) -> Table:
    """Return both sides of the confirmation on fresh seeds."""
    columns = ("settings", "IQM on fresh seeds>", "95% interval", "by seed", "in the search (flattering)>")
    confirmation = report.confirmation
    if confirmation is None:
        return Table("Result", columns, [])
    sides = [("the start", confirmation.baseline)]
    if not confirmation.same:
        sides.insert(0, (f"trial {confirmation.best.trial}", confirmation.best))
    return Table("Result on fresh seeds", columns, [_side_row(name, side) for name, side in sides])


def evidence_table(report: StudyReport) -> Table:
    """Return what the two sides of the confirmation come to."""
    confirmation = report.confirmation
    rows = []
    if confirmation is not None and not confirmation.same:
        chance = interval_text(confirmation.probability_interval, "{:.2f}".format)
        rows.append(("probability of improvement", f"{confirmation.probability:.2f}", chance))
    if confirmation is not None:
        rows.append(("optimism (search minus fresh seeds)", score_text(confirmation.optimism), "-"))
    return Table("Evidence", ("quantity", "value>", "95% interval"), rows)


def settings_table(report: StudyReport) -> Table:
    """Return the settings of the best trial beside those of the start."""
    best = report.best
    if best is None:
        return Table("Settings", (), [])
    rows = [
        (
            parameter.name,
            "-" if parameter.start is dataclasses.MISSING else value_text(parameter.start),
            value_text(best.values[parameter.key]) if parameter.key in best.values else "-",
            str(parameter.parameter.domain),
        )
        for parameter in report.parameters
    ]
    return Table("Best settings", ("setting", "start>", f"trial {best.number}>", "searched"), rows)


def ranking_table(report: StudyReport, most: int | None = None) -> Table:
    """Return the trials with a rank, each with its settings on one line."""
    rows = [
        (
            str(result.rank),
            str(result.number),
            score_text(result.objective),
            _scores_text(result.scores),
            "-" if result.trial.duration_seconds is None else duration(result.trial.duration_seconds),
            settings_text(result.trial.settings, report.study.config),
        )
        for result in report.ranking[:most]
    ]
    left = len(report.ranking) - len(rows)
    title = f"Trials: scores {FLATTERING}" + (f" ({left} more are left out)" if left else "")
    return Table(title, ("rank>", "trial>", "objective>", "by seed", "time>", "settings"), rows)


def wide_ranking_table(report: StudyReport, parameters: Sequence[SearchedParameter]) -> Table:
    """Return the trials with a rank, each with its settings in columns."""
    table = ranking_table(report)
    rows = [
        (
            *row[:-1],
            *(
                value_text(one.values[parameter.key]) if parameter.key in one.values else "-"
                for parameter in parameters
            ),
        )
        for row, one in zip(table.rows, report.ranking, strict=True)
    ]
    return Table(table.title, (*table.columns[:-1], *(f"{parameter.name}>" for parameter in parameters)), rows)


def finalist_table(report: StudyReport) -> Table:
    """Return the finalists with their scores on further seeds."""
    rows = [
        (
            str(result.number),
            score_text(result.objective),
            _scores_text(result.further) or "-",
            score_text(result.over_all_seeds),
            "chosen" if result is report.best and result.further else "",
        )
        for result in report.finalists
    ]
    columns = ("trial>", "objective>", "by further seed", "over all seeds>", "note?")
    return Table("Finalists", columns, rows if any(result.further for result in report.finalists) else [])


def importance_table(report: StudyReport) -> Table:
    """Return the importances of the parameters."""
    names = {parameter.key: parameter.name for parameter in report.parameters}
    rows = [
        (names[importance.key], f"{importance.share:.0%}", "yes" if importance.beyond_chance else "no")
        for importance in report.importances.found
    ]
    return Table("Importances", ("parameter", "share>", "beyond chance"), rows)


def failure_table(report: StudyReport) -> Table:
    """Return the trials without an objective, with the reason."""
    rows = [
        (
            str(result.number),
            result.trial.status,
            result.trial.error or "",
            _scores_text(result.scores),
            settings_text(result.trial.settings, report.study.config),
        )
        for result in report.without_score
    ]
    return Table("Trials without a score", ("trial>", "status", "reason?", "by seed", "settings"), rows)


def lineage_table(report: StudyReport, results: Sequence[TrialResult] | None = None) -> Table:
    """Return members of a population, by default the lineage of the best, each with what it went on from."""
    if results is None:
        best = report.best
        numbers = [] if best is None or not report.is_population else report.lineage(best.number)
        by_number = {result.number: result for result in report.trials}
        results = [by_number[number] for number in numbers]
    rows = [
        (
            "-" if result.trial.generation is None else str(result.trial.generation),
            str(result.number),
            "-" if result.trial.parent is None else str(result.trial.parent),
            score_text(result.objective),
            ", ".join(map(str, result.scores)),
            settings_text(result.trial.settings, report.study.config),
        )
        for result in results
    ]
    return Table("Lineage of the best", ("generation>", "trial>", "parent>", "objective>", "seed>", "settings"), rows)


def fact_table(report: StudyReport) -> Table:
    """Return what was searched, and how."""
    study = report.study
    rows = [
        ("directory", str(report.directory)),
        ("start", str(study.config.get("preset") or "a configuration")),
        ("begun", study.created_at_utc),
        ("method", f"population, {study.generations} generations" if report.is_population else "trials one by one"),
        ("sampler", "" if report.is_population else study.sampler),
        ("pruner", "" if report.is_population else study.pruner),
        ("objective", f"interquartile mean over seeds of the {OBJECTIVES[study.objective]}"),
        ("seeds of the trials", ", ".join(map(str, study.seeds))),
        ("further seeds of finalists", ", ".join(map(str, study.final_seeds))),
        ("fresh seeds", ", ".join(map(str, study.confirm_seeds)) or "none"),
        ("versions", ", ".join(f"{name} {version}" for name, version in study.versions.items() if version)),
    ]
    return Table("Study", ("of the study", "value"), [row for row in rows if row[1]])


def study_tables(report: StudyReport, most: int | None = None, width: int | None = None) -> list[Table]:
    """Return the tables for text, with at most so many trials, and their settings cut to the width of a terminal."""
    tables = [
        result_table(report),
        evidence_table(report),
        settings_table(report),
        finalist_table(report),
        ranking_table(report, most),
        lineage_table(report),
        importance_table(report),
        failure_table(report),
    ]
    shown = [table.without_empty_columns() for table in tables if table.rows]
    return shown if width is None else [_fitted(table, width) for table in shown]


def _fitted(table: Table, width: int) -> Table:
    """Return a table with settings on one line each, as far as they fit beside the other columns."""
    if table.columns[-1] != "settings":
        return table
    others = [max(map(len, column)) + 2 for column in [*zip(table.columns, *table.rows, strict=True)][:-1]]
    room = max(_NARROWEST, width - sum(others))
    rows = [(*row[:-1], row[-1] if len(row[-1]) <= room else f"{row[-1][: room - 1]}…") for row in table.rows]
    return table._replace(rows=rows)


def verdict_sentence(report: StudyReport) -> str:
    """Return the verdict as a whole sentence."""
    return f"{report.verdict[0].upper()}{report.verdict[1:]}."


def summary(report: StudyReport) -> str:
    """Return task, trials and seeds in one sentence."""
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items()) or "none yet"
    study = report.study
    if report.is_population:
        members = f"a population of {study.trials} over {study.generations} generations"
        return f"{report.task}: {members}; trials: {counts}, of {report.planned}."
    seeds = f"{len(study.seeds)} seed{'s' * (len(study.seeds) > 1)} each"
    return f"{report.task}: trials on {seeds}: {counts}, of {report.planned}; suggested by {study.sampler}."


def importance_sentence(report: StudyReport) -> str:
    """Return what the importances say, or why there are none."""
    importances = report.importances
    if importances.reason is not None:
        return f"Importances: none, because {importances.reason}."
    names = {parameter.key: parameter.name for parameter in report.parameters}
    beyond = [names[importance.key] for importance in importances.found if importance.beyond_chance]
    if not beyond:
        return "Importances: no parameter stands out from chance with so few trials."
    return f"Importances: {', '.join(beyond)} matter{'s' * (len(beyond) == 1)} beyond chance."


def _side_row(name: str, side: Side) -> tuple[str, ...]:
    return (
        name,
        score_text(side.iqm),
        interval_text(side.interval, score_text),
        _scores_text(side.scores),
        score_text(side.searched),
    )


def _scores_text(scores: Mapping[int, float | None] | Mapping[int, float]) -> str:
    return ", ".join(f"{seed}: {score_text(score)}" for seed, score in scores.items())
