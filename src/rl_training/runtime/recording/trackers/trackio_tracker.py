"""trackio: a local SQLite file per project, in trackio's own directory (variable TRACKIO_DIR)."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.configuration.config_blocks import TrackioParams
from rl_training.runtime.recording.trackers.tracker import ROW_NUMBER, RowKey

_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class TrackioTracker:
    """A run of trackio, found again by its name; a row includes its number."""

    def __init__(
        self, params: TrackioParams, run_dir: Path, config: Mapping[str, Any], known: Mapping[str, str]
    ) -> None:
        """Start a run, or continue the one in `known`."""
        elsewhere = [name for name in _ELSEWHERE if os.environ.get(name)]
        if elsewhere:
            raise RuntimeError(f"the variable {elsewhere[0]} sends rows to a server, and only local runs are kept")
        with _silently():
            import trackio
            from trackio.sqlite_storage import SQLiteStorage

            self._storage, self._trackio = SQLiteStorage, trackio
            self._run = trackio.init(
                project=params.project,
                name=run_dir.name,
                group=params.group,
                config=dict(config),
                resume="allow" if known else "never",  # another directory may have had a run of this name
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        self.identity = {"run_id": self._run.id, "project": params.project, "run": run_dir.name}
        self._handed_over: set[RowKey] = set()

    def held(self) -> set[RowKey]:
        """Return the rows in the file and those on their way."""
        return self._stored() | self._handed_over

    def _stored(self) -> set[RowKey]:
        logs = self._storage.get_logs(self._run.project, self._run.name, run_id=self._run.id)
        return {(int(row[ROW_NUMBER]), int(row["step"])) for row in logs if ROW_NUMBER in row}

    def write(self, key: RowKey, numbers: Mapping[str, float]) -> None:
        """Hand over one row, which a thread of trackio writes within a second."""
        self._run.log({ROW_NUMBER: key[0], **numbers}, step=key[1])
        self._handed_over.add(key)

    def close(self, status: str) -> None:
        """Wait until everything is written, and check that it was: trackio's thread raises nothing."""
        with _silently():
            # Not by the run's own method: trackio would finish it again when the process ends.
            self._trackio.finish()
        lost = len(self._handed_over - self._stored())
        if lost:
            raise RuntimeError(f"{lost} rows are not in its file")


def _silently() -> contextlib.redirect_stdout[Any]:
    """Keep stdout for the results of a command, and stderr for what concerns the run."""
    return contextlib.redirect_stdout(io.StringIO())
