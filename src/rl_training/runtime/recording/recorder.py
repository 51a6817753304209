"""The files of a run besides checkpoints: metric rows, evaluations, metadata, and a lock while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import StorageError
from rl_training.experiment.config import TrainConfig, tracking_params
from rl_training.experiment.runs import (
    CONFIG,
    EVALUATIONS,
    LOCK,
    METADATA,
    METRICS,
    read_whole_metadata,
    refuse_links,
    utc_now,
    write_metadata,
)
from rl_training.experiment.storage.files import GONE, hold_lock, storage_errors
from rl_training.runtime.recording.sinks import JsonLines, MetricSink, Row, TensorBoardSink, plain_value
from rl_training.runtime.recording.trackers.opening import open_trackers
from rl_training.runtime.recording.trackers.tracker_sink import TrackerSink

logger = logging.getLogger("rl_training")

RESERVED_BYTES = 64 << 10  # several times the size of the metadata of a run with many tasks


class RunRecorder:
    """The open files of one run directory."""

    def __init__(self, run_dir: Path, config: TrainConfig, *, resumed_at: int = 0) -> None:
        """Lock the run for this process and open its files; `resumed_at` is the step it continues from."""
        self.run_dir = run_dir
        refuse_links(run_dir)
        self._lock = hold_lock(
            run_dir / LOCK,
            taken=f"another process is training in {run_dir}; wait for it, stop it, or add --fork to start a new run",
        )
        try:
            self._open(config, resumed_at)
        except BaseException:
            if self._lock is not None:
                self._lock.close()  # free the run for another attempt
            raise

    def _open(self, config: TrainConfig, resumed_at: int) -> None:
        run_dir = self.run_dir
        self._reserve(RESERVED_BYTES)
        self.metadata = read_whole_metadata(run_dir)
        self._metrics = JsonLines(run_dir / METRICS)
        self._evaluations = JsonLines(run_dir / EVALUATIONS)
        self._sinks: list[MetricSink] = [self._metrics]
        self._trackers: list[TrackerSink] = []
        if tracking_params(config).tensorboard:
            self._sinks.append(TensorBoardSink(run_dir / "tensorboard", resumed_at=resumed_at))

    def follow(self, config: TrainConfig) -> None:
        """Start the trackers, or continue their runs; to be called when the rows are those to go on from."""
        recorded = self.metadata.setdefault("trackers", {})
        for record in recorded.values():
            record["error"] = None  # they are tried again
        self._trackers = open_trackers(
            config, self.run_dir, known=recorded, rows=self._metrics.rows, report=self._report_tracker
        )
        for tracker in self._trackers:
            if tracker.identity:
                logger.info("tracking.%s: %s", tracker.name, ", ".join(map(" ".join, tracker.identity.items())))
                recorded[tracker.name] = {"error": None, **recorded.get(tracker.name, {}), **tracker.identity}

    def _report_tracker(self, name: str, error: str | None) -> None:
        """Record that a tracker has failed, and log it once; or that it holds all rows again."""
        record = self.metadata["trackers"].setdefault(name, {})
        record["error"] = error
        if error is not None:
            sentence = f"tracking.{name}: {error}; training goes on, and metrics.jsonl holds all rows"
            if sentence not in self.metadata["notices"]:
                logger.warning("%s", sentence)
            self.notice(sentence)

    def _reserve(self, size: int) -> None:
        """Reserve space in the lock file, so that the end of the run can be recorded on a full disk."""
        if self._lock is not None:
            with storage_errors("a lock", self.run_dir):
                self._lock.truncate(0)
                self._lock.write(os.urandom(size))  # compressible data would reserve no space
                self._lock.flush()

    def cut_back(self, lengths: Mapping[str, int]) -> None:
        """Truncate the files to the lengths stored in a checkpoint."""
        self._metrics.cut(lengths[METRICS])
        self._evaluations.cut(lengths[EVALUATIONS])

    def row(self, row: Row) -> None:
        """Record one row of metrics."""
        for sink in self._sinks:
            sink.write(row)
        for tracker in self._trackers:  # after the file, which they read
            tracker.write(row)
        self.metadata["latest_metrics"].update({key: value for key, value in row.items() if key != "event"})

    def episodes(self, rows: Iterable[Row]) -> None:
        """Record the episodes of one evaluation."""
        for row in rows:
            self._evaluations.write(row)

    def notice(self, sentence: str) -> None:
        """Record a message to the user, such as an inexact resume."""
        if sentence not in self.metadata["notices"]:
            self.metadata["notices"].append(sentence)

    def update(self, **fields: Any) -> None:
        """Change fields of the metadata and write it."""
        self.metadata.update(fields)
        latest = self.metadata["latest_metrics"]
        self.metadata["latest_metrics"] = {name: plain_value(value) for name, value in latest.items()}
        write_metadata(self.run_dir, self.metadata)

    def sync(self) -> dict[str, int]:
        """Sync the rows to disk and return the files' lengths, which a checkpoint stores."""
        for name in (CONFIG, METADATA):
            if not (self.run_dir / name).is_file():
                raise StorageError(f"cannot go on in {self.run_dir}: {name} is missing; {GONE}")
        return {METRICS: self._metrics.sync(), EVALUATIONS: self._evaluations.sync()}

    def finish(self, status: str, error: str | None) -> None:
        """Record how the run ended, close the files and release the lock."""
        ended = {"status": status, "error": error, "finished_at_utc": utc_now()}
        try:
            for tracker in self._trackers:
                tracker.close(status)
            try:
                self.update(**ended)
            except StorageError:
                self._write_in_reserve(ended)
            for file in (*self._sinks, self._evaluations):
                with contextlib.suppress(OSError, StorageError):
                    file.close()
        finally:
            if self._lock is not None:
                with contextlib.suppress(OSError, StorageError):
                    self._reserve(0)
                self._lock.close()
                self._lock = None  # a callback that fails at the end makes the run end again, as failed

    def _write_in_reserve(self, ended: Mapping[str, Any]) -> None:
        """Record the end of the run in the reserved space; an error here must not hide the one that ended the run."""
        try:
            self._reserve(0)
            self.update(**ended)
        except StorageError as error:
            logger.error("how the run ended could not be recorded: %s", error)
