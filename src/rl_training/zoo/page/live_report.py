"""The report of runs that go on, as a page at a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_training.zoo.page.html_report import Reloading, render_page
from rl_training.zoo.page.places import Served
from rl_training.zoo.page.server import STILL, LivePage, PageServer
from rl_training.zoo.reporting import Filters, build_report

SECONDS_BETWEEN_RELOADS = 10


def serve_report(paths: Sequence[Path], filters: Filters, port: int) -> PageServer:
    """Return a server, which listens already, for the report of some runs."""

    def build(places: Served, still: bool) -> str:
        report = build_report(paths, filters)
        going_on = any(run.status == "running" for run in report.runs)
        reloading = Reloading(None, "/") if still else Reloading(SECONDS_BETWEEN_RELOADS, f"/?{STILL}")
        return render_page(report, "report", Path(), places=places, reloading=reloading if going_on or still else None)

    live = LivePage(paths, build)
    live.page(still=False)  # so that a mistake is reported before anybody looks
    return PageServer(live, port)
