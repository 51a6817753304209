"""The report of runs or of a study that goes on, as a page at a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_training.zoo.page.html_report import render_page
from rl_training.zoo.page.layout import Reloading
from rl_training.zoo.page.places import Served
from rl_training.zoo.page.server import STILL, LivePage, PageServer
from rl_training.zoo.reporting import Filters, build_report
from rl_training.zoo.run_files import UnreadableError, read_run_metadata
from rl_training.zoo.run_index import UnreadableRun

SECONDS_BETWEEN_RELOADS = 10


def serve_report(paths: Sequence[Path], filters: Filters, port: int) -> PageServer:
    """Return a server, which listens already, for the report of some runs."""

    def build(places: Served, still: bool) -> str:
        report = build_report(paths, filters)
        going_on = any(run.status == "running" for run in report.runs) or any(map(_has_begun, report.unreadable))
        return render_page(report, "report", Path(), places=places, reloading=_reloading(still, going_on))

    live = LivePage(paths, build)
    live.page(still=False)  # so that a mistake is reported before anybody looks
    return PageServer(live, port)


def serve_study(directory: Path, port: int) -> PageServer:
    """Return a server, which listens already, for the report of a study."""
    from rl_training.zoo.studies.page import render_study_page
    from rl_training.zoo.studies.report import build_study_report

    def build(places: Served, still: bool) -> str:
        report = build_study_report(directory)
        going_on = any(result.trial.status == "running" for result in report.trials)
        awaited = report.confirmation is None and bool(report.study.confirm_seeds)
        reloading = _reloading(still, going_on or awaited)
        return render_study_page(report, Path(), places=places, reloading=reloading)

    live = LivePage([directory], build)
    live.page(still=False)
    return PageServer(live, port)


def _reloading(still: bool, going_on: bool) -> Reloading | None:
    if still:
        return Reloading(None, "/")
    return Reloading(SECONDS_BETWEEN_RELOADS, f"/?{STILL}") if going_on else None


def _has_begun(run: UnreadableRun) -> bool:
    """Return whether a run that cannot be read goes on: it has no row yet."""
    try:
        return bool(read_run_metadata(run.path)["status"] == "running")
    except UnreadableError:
        return False
