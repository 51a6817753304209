"""A run directory that is read again and again while its run goes on; only new rows are decoded."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.configuration.safe_yaml import parse_yaml
from rl_training.experiment.runs import CONFIG, METRICS, SCORE, SUITE_SCORE
from rl_training.zoo.run_files import (
    UnreadableError,
    finite,
    is_name,
    read_row,
    read_run_file,
    read_run_metadata,
    row_step,
)

RECENT_ROWS = 10
"""Training rows over which steps per second are measured."""
SILENT_SECONDS = 120.0
"""A running run without a new row for this long, and for far longer than its rows take, may have been killed."""
_MOST_BYTES = 16 << 20  # of new rows at a time
_MOST_POINTS = 20_000  # of one curve; beyond it every second one is dropped
TRAIN_RETURN = "train_return_mean"
_TIMES = "time_"


class FollowedRun:
    """What is known of one run so far."""

    def __init__(self, path: Path, *, metrics: Iterable[str] = (), clock: Callable[[], float] = time.time) -> None:
        """Follow a run; `metrics` are further curves to keep."""
        self.path = path
        self.problem: str | None = None
        """Why the directory cannot be read."""
        self.metadata: Mapping[str, Any] = {}
        self.total: int | None = None
        """Environment steps to train for."""
        self.step = 0
        self.curves: dict[str, list[tuple[int, float]]] = {name: [] for name in (SCORE, TRAIN_RETURN, *metrics)}
        self.times: dict[str, float] = {}
        """Seconds by stage, over the whole run."""
        self.last_row: float | None = None
        """When the newest row was written."""
        self._clock = clock
        self._seen: dict[str, tuple[int, int]] = {}
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._offset, self._tail = 0, b""
        self._rates: list[tuple[int, float]] = []  # steps of a training row and the seconds they took
        self.step, self.times, self.seconds = 0, {}, 0.0
        for points in self.curves.values():
            points.clear()

    def refresh(self) -> None:
        """Read what has changed."""
        try:
            if self._changed("metadata.json"):
                self.metadata = read_run_metadata(self.path)
            if self._changed(CONFIG):
                self.total = _total(self.path)
            self._read_rows()
            self.problem = None
        except UnreadableError as error:
            self.problem = str(error)
            self._seen.clear()
            self._forget_rows()

    def _changed(self, name: str) -> bool:
        """Return whether a file is another than when it was last read; a missing one counts as changed."""
        try:
            status = (self.path / name).stat()
        except OSError:
            return True
        found = (status.st_mtime_ns, status.st_size)
        changed = self._seen.get(name) != found
        self._seen[name] = found
        return changed

    # -- results -------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """`running`, `completed`, `interrupted` or `failed`; `silent` if no row has come for long, or `unreadable`."""
        status = str(self.metadata.get("status", "unreadable"))
        return "silent" if status == "running" and self._is_silent() else status

    def _is_silent(self) -> bool:
        usual = max((seconds for _, seconds in self._rates[-RECENT_ROWS:]), default=0.0)
        return self.age is not None and self.age > max(SILENT_SECONDS, 20 * usual)

    @property
    def age(self) -> float | None:
        """Seconds since the newest row; None before the first."""
        return None if self.last_row is None else max(0.0, self._clock() - self.last_row)

    @property
    def rate(self) -> float | None:
        """Environment steps per second over the last rows."""
        recent = self._rates[-RECENT_ROWS:]
        seconds = sum(taken for _, taken in recent)
        return sum(steps for steps, _ in recent) / seconds if seconds > 0 else None

    @property
    def remaining(self) -> float | None:
        """Estimated seconds to the end."""
        if self.total is None or not self.rate or self.status != "running":
            return None
        return max(0.0, (self.total - self.step) / self.rate - (self.age or 0.0))

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the time that each stage took; the rest is `other`."""
        whole = max(self.seconds, sum(self.times.values()))
        if whole <= 0:
            return {}
        parts = {name: seconds / whole for name, seconds in self.times.items()}
        return {**parts, "other": max(0.0, 1.0 - sum(parts.values()))}

    @property
    def title(self) -> str:
        """Algorithm, environment and seed."""
        if not self.metadata:
            return self.path.name
        return f"{self.metadata['algo']} on {self.metadata['env_id']}, seed {self.metadata['seed']}"

    def as_record(self) -> dict[str, Any]:
        """Return what a frame shows as plain data."""
        return {
            "run_dir": str(self.path),
            "status": self.status,
            "problem": self.problem,
            "step": self.step,
            "total_timesteps": self.total,
            "steps_per_second": self.rate,
            "seconds_remaining": self.remaining,
            "time_shares": self.shares,
            "metrics": {name: points[-1][1] for name, points in self.curves.items() if points},
        }

    # -- rows ----------------------------------------------------------------------------------------

    def _read_rows(self) -> None:
        try:
            descriptor = os.open(self.path / METRICS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._forget_rows()
            return
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableError(f"{METRICS} is not a regular file")
            if not self._goes_on(file, status.st_size):
                self._forget_rows()
            self.last_row = status.st_mtime if status.st_size else None
            while self._offset < status.st_size:
                file.seek(self._offset)
                whole, newline, _ = file.read(_MOST_BYTES).rpartition(b"\n")
                if not newline:
                    break  # the last row is being written
                self._offset += len(whole) + 1
                self._tail = whole.rpartition(b"\n")[2] + b"\n"
                for line in whole.split(b"\n"):
                    self._add(read_row(line.decode("utf-8", "replace"), METRICS))

    def _first_step(self) -> int:
        """Return the step at which the run started: that of its parent if it is a fork."""
        parent = self.metadata.get("parent")
        if not isinstance(parent, dict) or parent.get("kind", "fork") != "fork" or not _is_count(parent.get("step")):
            return 0
        return int(parent["step"])

    def _goes_on(self, file: Any, size: int) -> bool:
        """Return whether the file still holds what was read: a resumed run cuts it back and writes rows anew."""
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._tail))
        return bool(file.read(len(self._tail)) == self._tail)

    def _add(self, row: Mapping[str, Any]) -> None:
        step = row_step(row, METRICS)
        taken, self.step = step - (self.step or self._first_step()), max(self.step, step)
        rate = finite(row.get("steps_per_second"))
        if row["event"] == "train" and rate and rate > 0 and taken >= 0:
            self._rates.append((taken, taken / rate))
            self.seconds += taken / rate
        for name, value in row.items():
            if name.startswith(_TIMES) and (seconds := finite(value)) is not None:
                self.times[name.removeprefix(_TIMES)] = seconds
        if SUITE_SCORE in row and SUITE_SCORE not in self.curves:
            self.curves = {SUITE_SCORE: [], **self.curves}  # returns of several tasks have no meaningful mean
        for name, points in self.curves.items():
            number = finite(row.get(name))
            if number is not None:
                points.append((step, number))
                if len(points) > _MOST_POINTS:
                    del points[1:-1:2]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _total(path: Path) -> int | None:
    """Return the horizon in a run's configuration."""
    try:
        config = parse_yaml(read_run_file(path, CONFIG), CONFIG, quick=True)
    except ConfigError as error:
        raise UnreadableError(str(error)) from None
    total = config.get("total_timesteps") if isinstance(config, dict) else None
    return total if _is_count(total) and total else None


def shown_name(run: FollowedRun) -> str:
    """Return the name of a run's directory, or a placeholder if it cannot be printed."""
    return run.path.name if is_name(run.path.name) else ascii(run.path.name)
