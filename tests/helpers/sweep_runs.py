"""Helpers for tests of sweeps: tiny ones, and comparing what they left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import assert_same_run, tiny_config
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.recording.metrics import WALL_CLOCK_FIELDS

SHORT = {"total_timesteps": 160, "eval_interval": None}


def sweep_config(output_dir: Path, *seeds: int, **changes: Any) -> TrainConfig:
    """Return a configuration that trains each of the seeds within a second."""
    benchmark = {"seeds": list(seeds), **changes.pop("benchmark", {})}
    return tiny_config(output_dir, **{**SHORT, **changes}, benchmark=benchmark)


def only_summary(output_dir: Path) -> Path:
    """Return the one summary in an output directory."""
    (path,) = output_dir.glob("benchmark_summary__*.json")
    return path


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def run_dirs(summary_path: Path) -> dict[int, Path]:
    """Return the run directory of each seed."""
    runs = read_json(summary_path)["runs"]
    return {run["seed"]: Path(run["run_dir"]) for run in runs}


def timeless(summary_path: Path) -> dict[str, Any]:
    """Return a summary without what the clock and the place decide, and without how seeds were executed."""
    summary = read_json(summary_path)
    del summary["created_at_utc"], summary["finished_at_utc"], summary["config"]["output_dir"]
    summary["config"]["benchmark"] = summary["config"]["benchmark"]["seeds"]
    for run in summary["runs"]:
        for key in ("checkpoint_path", "best_checkpoint_path"):
            run[key] = run[key] and str(Path(run[key]).relative_to(run["run_dir"]))
        del run["duration_seconds"], run["run_dir"]
        run["metrics"] = {name: value for name, value in run["metrics"].items() if name not in WALL_CLOCK_FIELDS}
    summary["aggregate_metrics"] = {
        name: value
        for name, value in summary["aggregate_metrics"].items()
        if name.rpartition("_")[0] not in WALL_CLOCK_FIELDS
    }
    return summary


def assert_same_sweep(one: Path, other: Path) -> None:
    """Assert that two summaries and all their runs are equal, times aside."""
    assert timeless(one) == timeless(other)
    runs, other_runs = run_dirs(one), run_dirs(other)
    assert runs.keys() == other_runs.keys()
    for seed in runs:
        assert_same_run(runs[seed], other_runs[seed])
