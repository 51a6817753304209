"""Which runs are watched, and the loop that shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from rl_training.errors import ConfigError
from rl_training.experiment.runs import METADATA
from rl_training.zoo.live.followed import FollowedRun
from rl_training.zoo.live.frames import frame_of, line_of
from rl_training.zoo.run_index import run_directories

HINT = "Ctrl-C stops watching"
ENDED = ("completed", "interrupted", "failed")


class Watch:
    """The runs at and below some paths, read again for every frame."""

    def __init__(self, paths: Sequence[Path], *, metrics: Sequence[str] = ()) -> None:
        for path in paths:
            if not path.is_dir():
                raise ConfigError(f"{path}: no such directory; name a run, or where runs are (`train --output-dir`)")
        self.paths, self._metrics = list(paths), tuple(metrics)
        self._named = {path for path in self.paths if (path / METADATA).exists()}
        self._runs: dict[Path, FollowedRun] = {}
        self._shown: set[Path] = set(self._named)

    def refresh(self) -> list[FollowedRun]:
        """Return the runs to show: those that were named, and the others that go on or have done so since the start."""
        found = [path for root in self.paths for path in run_directories(root, [])]
        for path in dict.fromkeys(found):
            if path not in self._runs:
                self._runs[path] = FollowedRun(path, metrics=self._metrics)
        for path in [path for path in self._runs if path not in found]:
            del self._runs[path]  # it was moved or deleted
        for run in self._runs.values():
            if run.path in self._shown or run.status not in ENDED:
                run.refresh()
            if run.status == "running":
                self._shown.add(run.path)
        return [run for path, run in sorted(self._runs.items()) if path in self._shown]

    @property
    def waiting(self) -> str:
        """The sentence if there is nothing to show."""
        places = ", ".join(map(str, self.paths))
        ended = len(self._runs)
        return f"no run is going on in {places}" + (f" ({ended} ended)" if ended else "")

    @property
    def over(self) -> bool:
        """Whether only single runs were named, and all of them have ended."""
        return len(self._named) == len(self.paths) and all(
            self._runs[path].status in ENDED for path in self._named if path in self._runs
        )


def watch_lines(watch: Watch, interval: float, write: Callable[[str], None]) -> None:
    """Write a line for every run whenever it has changed, until all have ended."""
    written: dict[Path, tuple[str, int]] = {}
    waited = False
    for runs in _frames(watch, interval):
        for run in runs:
            state = (run.status, run.step)
            if written.get(run.path) != state:
                written[run.path] = state
                write(line_of(run))
        if not runs and not waited:
            waited = True
            write(watch.waiting)


def watch_screen(watch: Watch, interval: float, stream: TextIO) -> None:
    """Keep a live picture of the runs on a terminal until all have ended."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for runs in _frames(watch, interval):
            # The last line is short, so that the ^C which a terminal echoes after it does not wrap.
            live.update(Group(frame_of(runs, watch.waiting, console), Text(HINT, "dim")), refresh=True)


def show_once(watch: Watch, stream: TextIO, *, terminal: bool) -> None:
    """Write one frame."""
    runs = watch.refresh()
    if terminal:
        from rich.console import Console

        console = Console(file=stream)
        console.print(frame_of(runs, watch.waiting, console))
        return
    for line in [line_of(run) for run in runs] or [watch.waiting]:
        print(line, file=stream)


def _frames(watch: Watch, interval: float) -> Iterator[list[FollowedRun]]:
    while True:
        yield watch.refresh()
        if watch.over:
            return
        time.sleep(interval)
