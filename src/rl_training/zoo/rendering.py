"""A report as text, Markdown, CSV, JSON or a page. The same report always gives the same bytes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rl_training.experiment.storage.printing import printable
from rl_training.zoo.reporting import Report
from rl_training.zoo.tables import Table, leaderboard_tables, report_tables

Kind = Literal["report", "leaderboard"]


def render(
    report: Report, kind: Kind, output_format: str, *, width: int | None = None, folder: Path | None = None
) -> str:
    """Return the report in one of `FORMATS`.

    `width` is that of the terminal for text; `folder` is where a page will be, by default the working directory.
    """
    if output_format == "text" and width is not None:
        return _render_for_terminal(report, kind, width)
    if output_format == "html" and folder is not None:
        return _render_html(report, kind, folder)
    return FORMATS[output_format](report, kind)


def tables_as_text(opening: Sequence[str], tables: Sequence[Table], closing: Sequence[str]) -> str:
    """Return sentences, aligned columns of any width, and further sentences, for files and pipes."""
    blocks = []
    for table in tables:
        rows = [tuple(column.rstrip(">") for column in table.columns), *table.rows]
        cells = [[printable(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        pads = [str.rjust if column.endswith(">") else str.ljust for column in table.columns]
        lines = [
            "  ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)).rstrip()
            for row in cells
        ]
        blocks.append("\n".join([printable(table.title), *lines]))
    first, last = ("\n".join(map(printable, sentences)) for sentences in (opening, closing))
    return "\n\n".join(filter(None, [first, *blocks, last])) + "\n"


def tables_for_terminal(opening: Sequence[str], tables: Sequence[Table], closing: Sequence[str], width: int) -> str:
    """Return the same with Rich tables that wrap long cells."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system="standard", highlight=False)
    for sentence in opening:
        console.print(Text(printable(sentence)))
    if opening:
        console.print()
    for table in tables:
        shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in table.columns:
            shown.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(Text(printable(cell)) for cell in row))
        console.print(Text(printable(table.title), style="bold"))
        console.print(shown)
        console.print()
    for sentence in closing:
        console.print(Text(printable(sentence)))
    return file.getvalue()


def tables_as_markdown(opening: Sequence[str], tables: Sequence[Table], closing: Sequence[str]) -> str:
    """Return sentences, tables and further sentences as Markdown."""
    blocks = [_markdown_cell(sentence) for sentence in opening]
    for table in tables:
        rule = ["---:" if column.endswith(">") else "---" for column in table.columns]
        rows = [[column.rstrip(">") for column in table.columns], rule, *map(list, table.rows)]
        lines = [f"| {' | '.join(map(_markdown_cell, row))} |" for row in rows]
        blocks.append("\n".join([f"## {_markdown_cell(table.title)}", "", *lines]))
    if closing:
        blocks.append("\n".join(f"- {_markdown_cell(sentence)}" for sentence in closing))
    return "\n\n".join(blocks) + "\n"


def rows_as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows by column; text that a spreadsheet would take for a formula is escaped."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    lines: list[list[Any]] = [[*columns], *([row.get(column) for column in columns] for row in rows)]
    writer.writerows([_csv_text(value) if isinstance(value, str) else value for value in line] for line in lines)
    return file.getvalue()


def _tables(report: Report, kind: Kind) -> list[Table]:
    """Return the tables that have rows."""
    tables = report_tables(report) if kind == "report" else leaderboard_tables(report)
    return [table.without_empty_columns() for table in tables if table.rows]


def _closing(report: Report) -> list[str]:
    return [*report.notices, *(reason for gate in report.gates for reason in gate.reasons)]


def _or_no_runs(report: Report, kind: Kind, words: str) -> tuple[list[str], list[Table], list[str]]:
    tables, closing = _tables(report, kind), _closing(report)
    return [] if tables or closing else [words], tables, closing


def _render_text(report: Report, kind: Kind) -> str:
    return tables_as_text(*_or_no_runs(report, kind, "no runs"))


def _render_for_terminal(report: Report, kind: Kind, width: int) -> str:
    closing = _closing(report) or ([] if report.standings or report.unreadable else ["no runs"])
    return tables_for_terminal([], _tables(report, kind), closing, width)


def _render_markdown(report: Report, kind: Kind) -> str:
    return tables_as_markdown(*_or_no_runs(report, kind, "No runs."))


def _render_csv(report: Report, kind: Kind) -> str:
    """Return one row per run (including unreadable ones), or one per entry."""
    record = report.as_record()
    if kind == "report":
        columns: tuple[str, ...] = _RUN_COLUMNS
        rows = [_flat_run(run) for run in record["runs"]]
        rows += [
            {"run_dir": run["run_dir"], "status": "unreadable", "error": run["reason"]} for run in record["unreadable"]
        ]
    else:
        columns = _ENTRY_COLUMNS
        rows = [_flat_entry(entry) for entry in record["entries"]]
    further = dict.fromkeys(key for row in rows for key in row if key.startswith(_SUITE_COLUMNS))
    return rows_as_csv((*columns, *further), rows)


def _render_json(report: Report, kind: Kind) -> str:
    record = report.as_record()
    if kind == "leaderboard":
        del record["runs"]
    return as_json(record)


def as_json(record: Mapping[str, Any]) -> str:
    """Return a record as strict JSON."""
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def _render_html(report: Report, kind: Kind, folder: Path = Path()) -> str:
    from rl_training.zoo.page.html_report import render_page  # the other formats need no templates

    return render_page(report, kind, folder)


FORMATS: dict[str, Callable[[Report, Kind], str]] = {
    "text": _render_text,
    "json": _render_json,
    "csv": _render_csv,
    "markdown": _render_markdown,
    "html": _render_html,
}

_RUN_COLUMNS = (
    *("run_dir", "entry", "algo", "env_id", "seed", "status", "counted", "steps", "score"),
    *("created_at_utc", "finished_at_utc", "name", "tags", "error"),
)
_ENTRY_COLUMNS = (
    *("env_id", "rank", "name", "algo", "preset", "suite", "fingerprint", "seeds", "iqm", "interval_low"),
    *("interval_high", "median", "mean", "std", "min", "max", "normalized_iqm", "label", "tags", "note", "drift"),
)
# Only if there are suites; `score/` is followed by the name of the task.
_SUITE_COLUMNS = ("trained_on", "metric", "normalized_median", "score/")


def _flat_run(run: dict[str, Any]) -> dict[str, Any]:
    tasks = {f"score/{name}": score for name, score in run.get("task_scores", {}).items()}
    return {**run, "tags": " ".join(run["tags"]), **tasks}


def _flat_entry(entry: dict[str, Any]) -> dict[str, Any]:
    low, high = entry["interval"] or (None, None)
    return {**entry, "interval_low": low, "interval_high": high, "tags": " ".join(entry["tags"])}


def _csv_text(text: str) -> str:
    """Return text that no spreadsheet takes for a formula; numbers, even negative ones, are not text."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _markdown_cell(text: str) -> str:
    """Return text escaped for Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", printable(text))
