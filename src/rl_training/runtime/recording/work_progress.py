"""Progress of work that is counted, on stderr: a live line on a terminal, a few plain lines in a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TextIO

LINES = 4
"""Plain lines per piece of work in a pipe."""


class WorkProgress:
    """Shows how much of a piece of work is done."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        """With `quiet` nothing is shown; `stream` is stderr by default."""
        self.quiet = quiet
        self.stream = sys.stderr if stream is None else stream

    @contextlib.contextmanager
    def of(self, what: str, total: int) -> Iterator[_Work]:
        """Return the counter of a piece of work with `total` parts."""
        live = not self.quiet and self.stream.isatty() and os.environ.get("TERM") != "dumb"
        if not live:
            yield _Lines(what, total, None if self.quiet else self.stream)
            return
        with _live_bar(what, total, self.stream) as work:
            yield work


class _Work:
    """Counts parts of the work."""

    def advance(self, parts: int = 1, note: str = "") -> None:
        """Count parts that are done; `note` is shown beside them."""
        raise NotImplementedError


class _Lines(_Work):
    """One line at every quarter of work that takes longer than a moment."""

    def __init__(self, what: str, total: int, stream: TextIO | None) -> None:
        self.what, self.total, self.stream = what, total, stream
        self.done = 0
        self._started = time.monotonic()

    def advance(self, parts: int = 1, note: str = "") -> None:
        before, self.done = self.done, self.done + parts
        crossed = before * LINES // self.total != self.done * LINES // self.total
        if self.stream is None or not crossed or time.monotonic() - self._started < 1.0:
            return
        with contextlib.suppress(OSError, ValueError):  # a closed pipe must not end the work
            print(
                f"{self.what} {self.done:,}/{self.total:,}{f', {note}' if note else ''}", file=self.stream, flush=True
            )


@contextlib.contextmanager
def _live_bar(what: str, total: int, stream: TextIO) -> Iterator[_Work]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=stream)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        refresh_per_second=4,
    )
    task = bar.add_task(what, total=total, note="")

    class Bar(_Work):
        def advance(self, parts: int = 1, note: str = "") -> None:
            bar.update(task, advance=parts)
            if note:
                bar.update(task, note=note)

    with bar:
        console.show_cursor(True)  # a second signal would end the process with a hidden cursor
        yield Bar()
