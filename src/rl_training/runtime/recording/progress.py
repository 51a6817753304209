"""Progress reports on stderr: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rl_training.experiment.storage.printing import duration, number, printable
from rl_training.runtime.callbacks import Callback, TrainingEvent

logger = logging.getLogger("rl_training")

RATE_WINDOW = 10.0
"""Seconds over which steps per second are measured."""


def make_progress(*, quiet: bool = False, stream: TextIO | None = None) -> list[Callback]:
    """Return the callbacks that report progress on `stream` (default: stderr), none if `quiet`."""
    if quiet:
        return []
    target = sys.stderr if stream is None else stream
    if target.isatty() and os.environ.get("TERM") != "dumb":
        return [ProgressBar(target)]
    return [ProgressLines(target)]


class StepRate:
    """Steps per second over the last seconds, including evaluations and checkpoints."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque()

    def add(self, step: int) -> None:
        """Record the step that was reached."""
        now = self._clock()
        self._points.append((now, step))
        # The oldest point outside the window is kept: without it there would be no rate after one long update.
        while len(self._points) > 2 and self._points[1][0] <= now - RATE_WINDOW:
            self._points.popleft()

    def per_second(self) -> float | None:
        """Return the rate, or None if it is not known yet."""
        if len(self._points) < 2:
            return None
        (earlier, first), (later, last) = self._points[0], self._points[-1]
        return (last - first) / (later - earlier) if later > earlier else None


class _Progress(Callback):
    """Common parts of both forms of progress."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self._clock = clock
        self.rate = StepRate(clock)
        self.train_return: str | None = None
        self.eval_return: str | None = None

    def on_train_start(self, event: TrainingEvent) -> None:
        """Report the run directory and the first step; the run may be the next of several."""
        self.rate = StepRate(self._clock)
        self.train_return = self.eval_return = None
        self.rate.add(event.step)
        if event.step >= event.total_timesteps:
            self.write_line(f"the run is already complete at step {event.step:,}; --total-timesteps goes on beyond it")
        elif event.step:
            self.write_line(f"going on at step {event.step:,} in {printable(str(event.run_dir))}")
        else:
            self.write_line(f"training in {printable(str(event.run_dir))}")

    def on_update_end(self, event: TrainingEvent) -> None:
        """Record the step and the training return."""
        self.rate.add(event.step)
        self.train_return = returns_text(event.metrics, "train_return_mean") or self.train_return

    def on_eval_end(self, event: TrainingEvent) -> None:
        """Record the evaluation's return."""
        self.rate.add(event.step)
        self.eval_return = returns_text(event.metrics, "eval_return_mean") or self.eval_return

    def rate_text(self) -> str:
        """Return steps per second as text."""
        rate = self.rate.per_second()
        return "- steps/s" if rate is None else f"{rate:,.0f} steps/s"

    def remaining_text(self, event: TrainingEvent) -> str:
        """Return the estimated time to the end as text."""
        rate = self.rate.per_second()
        if not rate:
            return "ETA -:--:--"
        return f"ETA {duration((event.total_timesteps - event.step) / rate)}"

    def write_line(self, line: str) -> None:
        """Write one line; a closed pipe must not end the run."""
        with contextlib.suppress(OSError, ValueError):
            print(line, file=self.stream, flush=True)


class ProgressLines(_Progress):
    """One line per row of metrics and per evaluation, without control characters."""

    def on_update_end(self, event: TrainingEvent) -> None:
        """Report the row that was logged."""
        super().on_update_end(event)
        if not event.metrics:
            return
        percent = min(100.0, 100.0 * event.step / event.total_timesteps)
        parts = [
            f"step {event.step:,}/{event.total_timesteps:,} ({percent:.0f}%)",
            self.rate_text(),
            self.remaining_text(event),
        ]
        if self.train_return is not None:
            parts.append(f"train return {self.train_return}")
        self.write_line(", ".join(parts))

    def on_eval_end(self, event: TrainingEvent) -> None:
        """Report the evaluation."""
        super().on_eval_end(event)
        metrics = event.metrics
        if "eval_return_mean" in metrics:
            suite = bool(by_task(metrics, "eval_return_mean"))
            spread = "" if suite else f" +- {number(metrics['eval_return_std'])}"
            self.write_line(
                f"step {event.step:,}: eval return {self.eval_return}{spread} over {metrics['eval_episodes']} episodes"
            )


class LoggedProgress(ProgressLines):
    """The same lines as log messages, which are forwarded to the sweep."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def write_line(self, line: str) -> None:
        """Log one line."""
        logger.info("%s", line)


class ProgressBar(_Progress):
    """A live line on a terminal."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._bar: Any = None
        self._task: Any = None

    def on_train_start(self, event: TrainingEvent) -> None:
        """Show the live line."""
        super().on_train_start(event)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        def text(field: str) -> TextColumn:
            return TextColumn(f"{{task.fields[{field}]}}", markup=False)

        console = Console(file=self.stream)
        self._bar = Progress(
            text("percent"), BarColumn(bar_width=16), *(text(name) for name in ("steps", "rate", "remaining")),
            *(text(name) for name in ("train", "eval")),
            console=console,
            refresh_per_second=4,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=event.total_timesteps, **self._fields(event))
        self._bar.start()
        console.show_cursor(True)  # a second signal would end the process with a hidden cursor

    def on_update_end(self, event: TrainingEvent) -> None:
        """Update the live line."""
        super().on_update_end(event)
        self._update(event)

    def on_eval_end(self, event: TrainingEvent) -> None:
        """Show the evaluation's return."""
        super().on_eval_end(event)
        self._update(event)

    def on_train_end(self, event: TrainingEvent) -> None:
        """Leave the last state of the line on the screen."""
        if self._bar is not None:
            self._update(event)
            self._bar.stop()
            self._bar = None

    def _update(self, event: TrainingEvent) -> None:
        if self._bar is not None:
            completed = min(event.step, event.total_timesteps)
            self._bar.update(self._task, completed=completed, **self._fields(event))

    def _fields(self, event: TrainingEvent) -> dict[str, str]:
        return {
            "percent": f"{min(100.0, 100.0 * event.step / event.total_timesteps):3.0f}%",
            "steps": f"{event.step:,}/{event.total_timesteps:,}",
            "rate": self.rate_text(),
            "remaining": self.remaining_text(event),
            "train": "" if self.train_return is None else f"train {self.train_return}",
            "eval": "" if self.eval_return is None else f"eval {self.eval_return}",
        }


def by_task(metrics: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return a metric of each task of a suite, empty if there is none."""
    return {key.partition("/")[2]: value for key, value in metrics.items() if key.startswith(f"{name}/")}


def returns_text(metrics: Mapping[str, Any], name: str) -> str | None:
    """Return a mean return as text, one for each task of a suite, since their mean is not meaningful."""
    tasks = by_task(metrics, name)
    if tasks:
        return ", ".join(f"{task} {number(value)}" for task, value in tasks.items())
    return number(metrics[name]) if name in metrics else None
