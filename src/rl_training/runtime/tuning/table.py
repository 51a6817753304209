"""The trials of a study as a table that is drawn again on a terminal whenever something changes."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TextIO

from rl_training.experiment.storage.printing import duration, printable
from rl_training.experiment.sweeps import COMPLETED, RUNNING
from rl_training.experiment.tuning.journal import Trial
from rl_training.experiment.tuning.study import Study
from rl_training.experiment.tuning.trials import settings_text

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 12
"""Trials in the table: those that are trained, the best ones, and the latest."""
_BEST_SHOWN = 4
logger = logging.getLogger("rl_training")


def make_table(study: Study, *, quiet: bool, stream: TextIO | None = None) -> TrialTable | None:
    """Return a table for a terminal; None elsewhere, where log lines tell of the trials."""
    target = sys.stderr if stream is None else stream
    if quiet or not target.isatty() or os.environ.get("TERM") == "dumb":
        return None
    return TrialTable(study, target)


class TrialTable:
    """A live table; log lines of the runs are left out meanwhile, warnings stay."""

    def __init__(self, study: Study, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        population = study.method == "pbt"
        self._study, self._seeds = study, 1 if population else len(study.seeds)
        self._trials = study.trials * (study.generations if population else 1)
        self._known: dict[int, Trial] = {}
        self._begun = time.monotonic()
        self._live = Live(console=Console(file=stream), get_renderable=self.render, refresh_per_second=2)

    def __enter__(self) -> TrialTable:
        self._level = logger.level
        logger.setLevel(logging.WARNING)
        self._live.start()
        return self

    def __exit__(self, *reason: Any) -> None:
        self._live.stop()
        logger.setLevel(self._level)

    def update(self, trial: Trial) -> None:
        """Show the latest state of a trial."""
        self._known[trial.number] = trial

    def render(self) -> Table:
        """Return the table as it is now."""
        from rich.box import SIMPLE
        from rich.table import Table

        counts = Counter(trial.status for trial in self._known.values())
        told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no trial yet"
        title = f"{told}; of {self._trials}, {duration(time.monotonic() - self._begun)}"
        table = Table(title=title, title_style="bold", box=SIMPLE, expand=True)
        for name, width in (("trial", 5), ("status", 9), ("seeds", 5), ("objective", 10)):
            table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True, min_width=width)
        table.add_column("what it changes", overflow="ellipsis", no_wrap=True, ratio=1)
        ranked = self._ranked()
        for trial in self._shown(ranked):
            trained = sum(run.status == COMPLETED for run in trial.runs.values())
            is_best = bool(ranked) and trial.number == ranked[0].number
            table.add_row(
                str(trial.number),
                trial.status,
                f"{trained}/{self._seeds}",
                "" if trial.value is None else f"{trial.value:,.2f}",
                printable(trial.error or "") or settings_text(trial.settings, self._study.config),
                style="bold green" if is_best else "" if trial.status in (COMPLETED, RUNNING) else "dim",
            )
        return table

    def _ranked(self) -> list[Trial]:
        scored = [trial for trial in self._known.values() if trial.value is not None]
        return sorted(scored, key=lambda trial: (-(trial.value or 0.0), trial.number))

    def _shown(self, ranked: list[Trial]) -> list[Trial]:
        """Return the trials in training, the best, and as many of the latest as there is place for."""
        chosen = {number: trial for number, trial in self._known.items() if trial.status == RUNNING}
        chosen |= {trial.number: trial for trial in ranked[:_BEST_SHOWN]}
        for number in sorted(self._known, reverse=True):
            if len(chosen) >= SHOWN:
                break
            chosen.setdefault(number, self._known[number])
        return [chosen[number] for number in sorted(chosen)]
