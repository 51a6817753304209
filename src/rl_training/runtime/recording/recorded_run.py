"""A run with a run directory: writing its files, calling its callbacks, and its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.checkpoints import check_still_there
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import CallbackList, TrainingEvent
from rl_training.runtime.recording.counters import RunCounters
from rl_training.runtime.recording.recorder import RunRecorder

logger = logging.getLogger("rl_training")


class RecordedRun(RunCounters):
    """Counters with a run directory, a recorder and callbacks."""

    config: TrainConfig
    callbacks: CallbackList
    _recorder: RunRecorder

    def __init__(self) -> None:
        super().__init__()
        self.run_dir: Path | None = None
        self._checkpoint_path: Path | None = None
        self._timed_from = (0, 0.0)  # step and time of the last row

    def request_stop(self, reason: str) -> None:
        """End the run after the current step."""
        self.stop_reason = self.stop_reason or reason

    def notify(self, sentence: str) -> None:
        """Log a message to the user and record it in the metadata."""
        logger.warning("%s", sentence)
        self._recorder.notice(sentence)

    def was_told(self, beginning: str) -> bool:
        """Return whether a message that begins so is recorded, also before the run was resumed."""
        return any(str(notice).startswith(beginning) for notice in self._recorder.metadata["notices"])

    def _record(self, row: dict[str, Any]) -> None:
        self.logged.take_into(row)
        self._recorder.row(row)
        self._latest.update({key: value for key, value in row.items() if key != "event"})

    def _log(self) -> dict[str, Any]:
        """Record and return a row of the metrics since the last one."""
        self._check_finite()
        return self._write_row()

    def _check_finite(self) -> None:
        self.metrics.check_finite(self.step)

    def _write_row(self) -> dict[str, Any]:
        now, (step, since) = time.perf_counter(), self._timed_from
        row = {
            "event": "train",
            "global_step": self.step,
            "update_count": self.update_count,
            **self.episode_metrics(),
            **self.metrics.means(),
            **self.env_metrics.take(),
            **self._resolved,
            "steps_per_second": (self.step - step) / max(now - since, 1e-9),
            **self._times,
        }
        self._timed_from, self._logged_step = (self.step, now), self.step
        self.metrics.clear()
        self._record(row)
        return row

    def _best_path(self) -> Path | None:
        assert self.run_dir is not None
        return None if self._best is None else self.run_dir / self._best["path"]

    def _forget_best(self) -> None:
        """Report that the best checkpoint is missing, and start a new search for the best."""
        assert self._best is not None
        self.notify(f"{self._best['path']}, the best at that time, is gone; a new best is chosen from here on")
        self._best = None

    def _check_saved(self) -> None:
        """Raise an error if saved files were removed: a run whose checkpoints vanish must not end as a success."""
        if self._checkpoint_path is not None:
            check_still_there(self._checkpoint_path)
        best = self._best_path()
        if best is not None and not best.is_dir():
            self._forget_best()

    def _end(self, status: str, error: BaseException | None = None) -> None:
        """Call the callbacks about the end of the run, record it and close the files."""
        try:
            self.callbacks.call("on_train_end", self._event(status=status, error=error))
            if self.logged and status == "completed":  # no further row will be written
                self._record({"event": "train", "global_step": self.step})
        finally:
            self._recorder.finish(status, None if error is None else f"{type(error).__name__}: {error}")

    def _end_in_failure(self, error: BaseException) -> None:
        """Call the callbacks about an error and end the run."""
        try:
            self.callbacks.call("on_exception", self._event(status="failed", error=error))
        finally:
            self._end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", error)

    def _event(
        self,
        metrics: Mapping[str, Any] | None = None,
        *,
        checkpoint_path: Path | None = None,
        status: str = "running",
        error: BaseException | None = None,
    ) -> TrainingEvent:
        assert self.run_dir is not None
        return TrainingEvent(
            run_dir=self.run_dir,
            step=self.step,
            total_timesteps=self.config.total_timesteps,
            update_count=self.update_count,
            request_stop=self.request_stop,
            log=self.log,
            metrics=metrics or {},
            checkpoint_path=checkpoint_path,
            status=status,
            error=error,
        )
