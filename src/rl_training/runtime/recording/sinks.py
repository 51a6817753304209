"""Files of metric rows: `metrics.jsonl` and TensorBoard's events; `trackers` has the dashboards that follow them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rl_training.experiment.storage.files import check_still_there, open_to_append, storage_errors

Row = Mapping[str, Any]


class MetricSink(Protocol):
    """A destination of metric rows."""

    def write(self, row: Row) -> None:
        """Write one row; `global_step` is its position."""

    def close(self) -> None:
        """Finish writing."""


class JsonLines:
    """An append-only file of JSON objects that can be truncated to an earlier length."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage_errors(path.name, path.parent):
            self._file = open_to_append(path)

    def cut(self, length: int) -> None:
        """Keep the first `length` bytes."""
        with storage_errors(self.path.name, self.path.parent):
            # Rows that somebody has removed must not become zeros.
            self._file.truncate(min(length, self._file.seek(0, os.SEEK_END)))
            self._file.seek(0, os.SEEK_END)

    def write(self, row: Row) -> None:
        """Append one row and flush it."""
        line = json.dumps({key: plain_value(value) for key, value in row.items()}, allow_nan=False)
        with storage_errors(self.path.name, self.path.parent):
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        check_still_there(self._file, self.path)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows in the file."""
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def sync(self) -> int:
        """Sync the rows to disk and return the file's length."""
        with storage_errors(self.path.name, self.path.parent):
            os.fsync(self._file.fileno())
        check_still_there(self._file, self.path)
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardSink:
    """Event files for TensorBoard; the library is imported at the first row."""

    def __init__(self, directory: Path, *, resumed_at: int = 0) -> None:
        """Write to a directory; TensorBoard then ignores earlier events from step `resumed_at` on."""
        self.directory = directory
        self.resumed_at = resumed_at
        self._writer: Any = None

    def write(self, row: Row) -> None:
        """Write every number of a row as a scalar."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        with storage_errors("TensorBoard events", self.directory):
            if self._writer is None:
                self._writer = EventFileWriter(str(self.directory))
                if self.resumed_at:
                    started = SessionLog(status=SessionLog.START)
                    self._writer.add_event(Event(wall_time=_now(), step=self.resumed_at + 1, session_log=started))
            values = [
                Summary.Value(tag=tag, simple_value=float(value))
                for tag, value in row.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            ]
            event = Event(wall_time=_now(), step=int(row["global_step"]), summary=Summary(value=values))
            self._writer.add_event(event)

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()


def _now() -> float:
    import time

    return time.time()


def plain_value(value: Any) -> Any:
    """Return a value that strict JSON can represent: not-a-number becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
