"""A study's report as text, Markdown, CSV, JSON or a page. The same study always gives the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_training.experiment.tuning.domains import as_text
from rl_training.zoo.rendering import (
    as_json,
    rows_as_csv,
    tables_as_markdown,
    tables_as_text,
    tables_for_terminal,
)
from rl_training.zoo.studies.report import StudyReport, TrialResult
from rl_training.zoo.studies.tables import importance_sentence, study_tables, summary, verdict_sentence

_BEST_ON_TERMINAL = 10
_COLUMNS = ("trial", "rank", "status", "objective", "best_so_far")
_OF_POPULATIONS = ("generation", "parent", "seed")


def render_study(
    report: StudyReport, output_format: str, *, width: int | None = None, folder: Path | None = None
) -> str:
    """Return the report in one of the formats of `zoo.rendering`.

    `width` is that of the terminal for text; `folder` is where a page will be, by default the working directory.
    """
    if output_format == "json":
        return as_json(report.as_record())
    if output_format == "csv":
        return _csv(report)
    if output_format == "html":
        from rl_training.zoo.studies.page import render_study_page  # the other formats need no templates

        return render_study_page(report, folder or Path())
    opening, closing = [verdict_sentence(report), summary(report)], [importance_sentence(report), *report.notices]
    if output_format == "markdown":
        return tables_as_markdown(opening, study_tables(report), closing)
    tables = study_tables(report, _BEST_ON_TERMINAL, width)
    if width is not None:
        return tables_for_terminal(opening, tables, closing, width)
    return tables_as_text(opening, tables, closing)


def _csv(report: StudyReport) -> str:
    """Return one row per trial, with a column for each seed of a search and for each searched key."""
    scores = [f"score/{seed}" for seed in (*report.study.seeds, *report.study.final_seeds)]
    further = _OF_POPULATIONS if report.is_population else scores
    columns = (*_COLUMNS, *further, "duration_seconds", "error", *report.space.keys)
    best = [point.best for point in report.history]
    return rows_as_csv(columns, (_row(*pair) for pair in zip(report.trials, best, strict=True)))


def _row(result: TrialResult, best: float | None) -> dict[str, Any]:
    trial = result.trial
    return {
        **{key: _cell(value) for key, value in result.values.items()},
        "trial": trial.number,
        "rank": result.rank,
        "status": trial.status,
        "objective": trial.value,
        "best_so_far": best,
        **{f"score/{seed}": score for seed, score in {**result.scores, **result.further}.items()},
        "duration_seconds": trial.duration_seconds,
        "generation": trial.generation,
        "parent": trial.parent,
        "seed": next(iter(result.scores), None),
        "error": trial.error,
    }


def _cell(value: Any) -> Any:
    """Return a number as it is, all else as text: an empty cell is a parameter that is not active, `null` a value."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else as_text(value)
