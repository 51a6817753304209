"""A study's report as one HTML file: the verdict of fresh seeds first, then how the search came to its settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rl_training.experiment.storage.printing import printable
from rl_training.experiment.sweeps import FAILED
from rl_training.zoo.page.layout import Figure, Reloading, Section, Verdict, link, render_sections, status_word
from rl_training.zoo.page.places import Beside, Places
from rl_training.zoo.page.svg_charts import Spread, interval_chart
from rl_training.zoo.quantities import Quantity
from rl_training.zoo.studies.charts import (
    BEST,
    START,
    TRIAL,
    coordinates_chart,
    cross_sign,
    history_chart,
    importance_chart,
    lineage_chart,
    mark_sign,
    shown_range,
    slice_chart,
)
from rl_training.zoo.studies.parameters import SearchedParameter
from rl_training.zoo.studies.report import StudyReport, TrialResult
from rl_training.zoo.studies.tables import (
    OBJECTIVES,
    evidence_table,
    fact_table,
    failure_table,
    finalist_table,
    importance_sentence,
    lineage_table,
    result_table,
    settings_table,
    summary,
    verdict_sentence,
    wide_ranking_table,
)
from rl_training.zoo.tables import Table, score_text

# Limits, so that browsers can open the page of a long study.
_MOST_DRAWN = 300
_MOST_PARAMETERS = 24
_BEST_SHOWN = 20
_MOST_FAILURES = 100
_FLATTERY = (
    "These are scores in the search. The best of many trials owes a part of its score to luck, so they flatter it; "
    "only fresh seeds say how good it is."
)


def render_study_page(
    report: StudyReport, folder: Path, *, places: Places | None = None, reloading: Reloading | None = None
) -> str:
    """Return the page; run directories are linked relative to `folder`, where it will be, or by `places`."""
    places = places or Beside(folder)
    sections = [
        _result_section(report),
        *_settings_sections(report),
        *_search_sections(report),
        *_parameter_sections(report),
        *_trial_sections(report, places),
        Section("study", "Study", tables=[fact_table(report)], sentences=[f"{text}." for text in report.notices]),
    ]
    return render_sections(
        "AxiomRL study",
        summary(report),
        sections,
        verdict=Verdict(verdict_sentence(report), report.improved),
        reloading=reloading,
    )


def _result_section(report: StudyReport) -> Section:
    confirmation = report.confirmation
    if confirmation is None:
        return Section("result", "Result", sentences=["There is none without scores on fresh seeds."])
    sides = [(START, "the start", confirmation.baseline)]
    if not confirmation.same:
        sides.insert(0, (BEST, f"trial {confirmation.best.trial}", confirmation.best))
    rows = [
        Spread(position, name, list(side.scores.values()), side.iqm, side.interval) for position, name, side in sides
    ]
    chart = interval_chart(rows, "Scores on fresh seeds; the table below holds the figures", Quantity("score"))
    seeds = len(confirmation.best.scores)
    sentence = f"Trained from the beginning on {seeds} seeds that no trial saw: these scores are the result."
    return Section(
        "result",
        "Result",
        about="on fresh seeds",
        sentences=[sentence],
        figures=[Figure("Fresh seeds: each seed, interquartile mean, 95% interval", chart)],
        tables=[result_table(report)._replace(title="Result"), evidence_table(report)],
    )


def _settings_sections(report: StudyReport) -> list[Section]:
    table = settings_table(report)
    if not table.rows:
        return []
    sentences = []
    if report.best is not None and report.best.is_start:
        sentences.append("The start itself is the best.")
    return [Section("settings", table.title, sentences=sentences, tables=[table])]


def _search_sections(report: StudyReport) -> list[Section]:
    if not report.trials:
        return []
    scored = [result.objective for result in report.trials if result.objective is not None]
    sentences = [_FLATTERY]
    figures: list[Figure] = []
    if scored:
        _, below = shown_range(scored)
        if below:
            sentences.append(f"Triangles at the lower edge: {below} trials with far lower scores.")
        what = f"Objective ({OBJECTIVES[report.study.objective]})"
        if report.is_population:
            sentences.append("A dashed line leads to a member that went on from another one's checkpoint.")
            figures.append(Figure(f"{what} by generation", lineage_chart(report)))
        else:
            figures.append(Figure(f"{what} by trial, and the highest so far", history_chart(report)))
    tables = [finalist_table(report), lineage_table(report)]
    return [
        Section(
            "search",
            "Search",
            about="scores that flatter the best",
            sentences=sentences,
            legend=_legend(report),
            figures=figures,
            tables=[table.without_empty_columns() for table in tables if table.rows],
        )
    ]


def _legend(report: StudyReport) -> list[tuple[Markup, str, str]]:
    found = [(mark_sign(TRIAL), "trial", "")]
    if any(result.is_start and result is not report.best for result in report.trials):
        found.append((mark_sign(START), "the start", ""))
    if report.best is not None:
        name = "the start" if report.best.is_start else f"trial {report.best.number}"
        found.append((mark_sign(BEST), name, "the best" if report.best.rank == 1 else "chosen by further seeds"))
    if report.counts.get(FAILED):
        found.append((cross_sign(), "failed", ""))
    return found


def _parameter_sections(report: StudyReport) -> list[Section]:
    """Return importances, parallel coordinates and slices; those of a population are of its latest generation."""
    if not report.ranking:
        return []
    importances = report.importances
    parameters = _by_importance(report)[:_MOST_PARAMETERS]
    results = _drawn(report)
    figures = []
    if importances.found:
        names = {parameter.key: parameter.name for parameter in report.parameters}
        figures.append(Figure("Importances", importance_chart(importances, names)))
    several = len(report.ranking) > 1 and bool(parameters)
    if several:
        figures.append(Figure("Parallel coordinates", coordinates_chart(report, parameters, results)))
    sentences = [importance_sentence(report), *_left_out(report, results, parameters)]
    sections = [Section("parameters", "Parameters", sentences=sentences, legend=_legend(report), figures=figures)]
    if several:
        slices = [Figure(parameter.name, slice_chart(report, parameter, results)) for parameter in parameters]
        about = "the objective over each parameter"
        sections.append(Section("slices", "Slices", about=about, legend=_legend(report), figures=slices, small=True))
    return sections


def _by_importance(report: StudyReport) -> list[SearchedParameter]:
    order = {importance.key: number for number, importance in enumerate(report.importances.found)}
    return sorted(report.parameters, key=lambda one: order.get(one.key, len(order)))


def _drawn(report: StudyReport) -> list[TrialResult]:
    """Return the trials of slices and coordinates: as many of the best as are drawn, and failed ones among the rest."""
    latest = None if report.best is None else report.best.trial.generation
    rest = [one for one in report.without_score if one.trial.generation == latest]
    kept = {id(one) for one in [*report.ranking, *rest][:_MOST_DRAWN]}
    chosen = [one for one in report.trials if id(one) in kept or (one.is_start and one.trial.generation == latest)]
    return sorted(chosen, key=lambda one: (one is report.best, one.is_start, one.number))


def _left_out(
    report: StudyReport, results: Sequence[TrialResult], parameters: Sequence[SearchedParameter]
) -> list[str]:
    found = []
    if report.is_population:
        found.append("The charts show the latest generation.")
    elif len(results) < len(report.trials):
        found.append(f"The charts show the {len(results)} best of {len(report.trials)} trials.")
    if len(parameters) < len(report.parameters):
        found.append(f"They show {len(parameters)} of {len(report.parameters)} parameters.")
    return found


def _trial_sections(report: StudyReport, places: Places) -> list[Section]:
    if not report.trials:
        return []
    tables, everything = [], None
    if report.ranking:
        table = wide_ranking_table(report, _by_importance(report)[:_MOST_PARAMETERS])
        ranking = _with_links(table, report.ranking, places)
        short = len(ranking.rows) <= _BEST_SHOWN
        title = "Ranking" if short else f"The best {_BEST_SHOWN}"
        tables.append(ranking._replace(title=title, rows=ranking.rows[:_BEST_SHOWN]))
        everything = None if short else ranking._replace(title="All trials with a score")
    if report.is_population:
        members = lineage_table(report, report.trials)._replace(title="All members")
        tables.append(members)
    failures = failure_table(report)
    if failures.rows:
        linked = _with_links(failures, report.without_score, places)
        status = linked.columns.index("status")
        rows = [(*row[:status], status_word(row[status]), *row[status + 1 :]) for row in linked.rows]
        left = len(rows) - _MOST_FAILURES
        title = linked.title + (f" ({left} more are in the other formats)" if left > 0 else "")
        tables.append(linked._replace(title=title, rows=rows[:_MOST_FAILURES]).without_empty_columns())
    about = "by scores that flatter the best"
    return [Section("trials", "Trials", about=about, tables=tables, differences=everything)]


def _with_links(table: Table, results: Sequence[TrialResult], places: Places) -> Table:
    """Return a table whose scores by seed lead to the runs."""
    column = table.columns.index("by seed")
    rows = [
        (*row[:column], _linked_seeds(result, places), *row[column + 1 :])
        for row, result in zip(table.rows, results, strict=True)
    ]
    return table._replace(rows=rows)


def _linked_seeds(result: TrialResult, places: Places) -> Markup:
    shown = []
    for seed, score in result.scores.items():
        text = f"{seed}: {score_text(score)}"
        shown.append(link(result.runs[seed], places, text) if seed in result.runs else printable(text))
    return Markup(", ").join(shown)
