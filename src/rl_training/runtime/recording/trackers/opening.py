"""Opens the dashboards that a configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_training.errors import MissingExtraError
from rl_training.experiment.config import TrainConfig, tracking_params
from rl_training.experiment.configuration.config_blocks import MlflowParams, TrackioParams, WandbParams
from rl_training.runtime.recording.trackers.mlflow_tracker import MlflowTracker
from rl_training.runtime.recording.trackers.tracker import Row, Tracker
from rl_training.runtime.recording.trackers.tracker_sink import TrackerSink
from rl_training.runtime.recording.trackers.trackio_tracker import TrackioTracker
from rl_training.runtime.recording.trackers.wandb_tracker import WandbTracker
from rl_training.runtime.run_utils import serialize_train_config


def check_trackers(config: TrainConfig) -> None:
    """Raise an error for a tracker whose packages are not installed, before a run directory exists."""
    for name in tracking_params(config).trackers:
        if find_spec(name) is None:
            raise MissingExtraError(f"tracking.{name}", name)


def open_trackers(
    config: TrainConfig,
    run_dir: Path,
    *,
    known: Mapping[str, Mapping[str, Any]],
    rows: Callable[[], Sequence[Row]],
    report: Callable[[str, str | None], None],
) -> list[TrackerSink]:
    """Start every tracker of the configuration, or continue its run that `known` names."""
    return [
        TrackerSink(name, partial(_make, params, run_dir, config, _identity(known.get(name))), rows, report)
        for name, params in tracking_params(config).trackers.items()
    ]


def _make(
    params: WandbParams | MlflowParams | TrackioParams, run_dir: Path, config: TrainConfig, known: Mapping[str, str]
) -> Tracker:
    settings = serialize_train_config(config)
    if isinstance(params, WandbParams):
        return WandbTracker(params, run_dir, settings, known)
    if isinstance(params, MlflowParams):
        return MlflowTracker(params, run_dir, settings, known)
    return TrackioTracker(params, run_dir, settings, known)


def _identity(recorded: Any) -> dict[str, str]:
    """Return the texts of a record, which may come from somebody else's file."""
    return {key: value for key, value in dict(recorded or {}).items() if isinstance(value, str) and key != "error"}
