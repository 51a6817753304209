"""Progress of work on a dataset, on stderr: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rl_training.experiment.storage.printing import duration, printable
from rl_training.runtime.recording.progress import StepRate

LINE_INTERVAL = 5.0
"""Seconds between plain lines."""


class Progress:
    """Counts units of work, and reports them now and then."""

    def __init__(
        self, what: str, total: int, unit: str, *, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.what, self.total, self.unit = printable(what), max(total, 1), unit  # names may be somebody else's
        self.done = 0
        self._stream, self._clock = stream, clock
        self._rate = StepRate(clock)
        self._written = clock()

    def start(self, done: int = 0) -> None:
        """Begin, or go on where `done` units were done before."""
        self.done = done
        self._rate.add(done)
        self._written = self._clock()

    def add(self, count: int) -> None:
        """Count units of work."""
        self.done += count
        now = self._clock()
        if now - self._written >= LINE_INTERVAL:
            self._written = now
            with contextlib.suppress(OSError, ValueError):  # a closed pipe must not end the work
                print(f"{self.what}: {self.text()}", file=self._stream, flush=True)

    def text(self) -> str:
        """Return what was done, how fast, and the estimated time to the end."""
        done = min(self.done, self.total)  # the last episodes may go beyond
        parts = [f"{done:,}/{self.total:,} {self.unit} ({100 * done / self.total:.0f}%)"]
        self._rate.add(self.done)
        rate = self._rate.per_second()
        if rate:
            parts += [f"{rate:,.0f} {self.unit}/s", f"ETA {duration(max(0, self.total - self.done) / rate)}"]
        return ", ".join(parts)

    def close(self) -> None:
        """End the report."""


class ProgressBar(Progress):
    """A live line."""

    _bar: Any = None
    _task: Any = None

    def start(self, done: int = 0) -> None:
        """Show the line."""
        super().start(done)
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(file=self._stream)
        columns = [TextColumn(self.what, markup=False), BarColumn(bar_width=16)]
        self._bar = Bar(*columns, TextColumn("{task.fields[text]}", markup=False), console=console)
        self._task = self._bar.add_task("", total=self.total, text=self.text())
        self._bar.start()
        console.show_cursor(True)  # a signal could end the process with a hidden cursor

    def add(self, count: int) -> None:
        """Count units of work and update the line; rich decides when it is drawn."""
        self.done += count
        now = self._clock()
        if now - self._written >= 0.2:
            self._written = now
            self._bar.update(self._task, completed=min(self.done, self.total), text=self.text())

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._bar is not None:
            self._bar.update(self._task, completed=min(self.done, self.total), text=self.text())
            self._bar.stop()


class NoProgress(Progress):
    """Reports nothing."""

    def add(self, count: int) -> None:
        """Ignore the work."""


@contextlib.contextmanager
def progress_of(
    what: str, total: int, unit: str = "steps", *, done: int = 0, quiet: bool = False, stream: TextIO | None = None
) -> Iterator[Progress]:
    """Report on a piece of work of which `done` units were done before; nothing is reported if `quiet`."""
    target = sys.stderr if stream is None else stream
    live = target.isatty() and os.environ.get("TERM") != "dumb"
    kind = NoProgress if quiet else ProgressBar if live else Progress
    progress = kind(what, total, unit, stream=target)
    progress.start(done)
    try:
        yield progress
    finally:
        progress.close()
