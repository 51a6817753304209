"""MLflow: a local SQLite store, or a server."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.experiment.configuration.config_blocks import MlflowParams
from rl_training.runtime.recording.trackers.tracker import ROW_NUMBER, RowKey

STORE = Path("mlflow", "mlflow.db")
"""The local store, beside the run directories that share it."""

_STATUSES = {"completed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_MOST_PARAMS = 100  # per request
_LONGEST_PARAM = 500  # characters; some stores take no longer value
# A server that does not answer must not hold up training for minutes; nothing about this run is sent elsewhere.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}


class MlflowTracker:
    """A run of MLflow; a row is one batch of metrics that includes its number."""

    def __init__(
        self, params: MlflowParams, run_dir: Path, config: Mapping[str, Any], known: Mapping[str, str]
    ) -> None:
        """Start a run, or continue the one in `known` if the store has it."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        folder = run_dir.parent.resolve() / STORE.parent
        uri = params.uri if params.uri is not None else f"sqlite:///{folder / STORE.name}"
        with _alone_in(folder if params.uri is None else None):  # creating the tables twice at a time would fail
            self._client = MlflowClient(tracking_uri=uri)
            artifacts = (folder / "artifacts").as_uri() if params.uri is None else None
            run_id = self._find(known.get("run_id"))
            if run_id is None:
                run_id = self._start(params.experiment, artifacts, run_dir, config)
                flat = [Param(key, value) for key, value in _flat(config)]
                for first in range(0, len(flat), _MOST_PARAMS):
                    self._client.log_batch(run_id, params=flat[first : first + _MOST_PARAMS])
            else:
                self._client.update_run(run_id, status="RUNNING")
        self._run_id = run_id
        without_password = re.sub(r"//[^/@]*@", "//", uri)
        self.identity = {"run_id": run_id, "uri": without_password, "experiment": params.experiment}

    def _find(self, run_id: str | None) -> str | None:
        """Return the id of a run if the store still has it."""
        from mlflow.exceptions import MlflowException

        if run_id is None or not re.fullmatch(r"[0-9a-f]{32}", run_id):
            return None
        try:
            deleted = self._client.get_run(run_id).info.lifecycle_stage != "active"
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return None if deleted else run_id

    def _start(self, experiment: str, artifacts: str | None, run_dir: Path, config: Mapping[str, Any]) -> str:
        found = self._client.get_experiment_by_name(experiment)
        number = (
            self._client.create_experiment(experiment, artifact_location=artifacts)
            if found is None
            else found.experiment_id
        )
        tags = {key: str(config[key]) for key in ("algo", "env_id", "seed")}
        return str(self._client.create_run(number, run_name=run_dir.name, tags=tags).info.run_id)

    def held(self) -> set[RowKey]:
        """Return the rows in the store."""
        return {(int(one.value), one.step) for one in self._client.get_metric_history(self._run_id, ROW_NUMBER)}

    def write(self, key: RowKey, numbers: Mapping[str, float]) -> None:
        """Log one row; a SQL store takes all of it or nothing."""
        number, step = key
        now = int(time.time() * 1000)
        values = {ROW_NUMBER: number, **numbers}
        metrics = [self._metric(_name(name), float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, status: str) -> None:
        """Record how the run ended."""
        self._client.set_terminated(self._run_id, _STATUSES[status])


def _name(name: str) -> str:
    """Return a metric's name with only the characters that MLflow accepts."""
    return re.sub(r"[^\w./ :-]", "_", name, flags=re.ASCII)[:250]


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings by dotted key."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield _name(name), (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_PARAM]


@contextmanager
def _alone_in(folder: Path | None) -> Iterator[None]:
    """Let one process at a time create and open the store in a folder; None: a server, which does that itself."""
    if folder is None or os.name != "posix":
        if folder is not None:
            folder.mkdir(exist_ok=True)
        yield
        return
    import fcntl

    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
