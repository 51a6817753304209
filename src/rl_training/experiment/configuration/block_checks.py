"""Checks of the small nested blocks of a configuration; each is written back to `values` in its completed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.experiment.configuration.config_blocks import (
    BenchmarkParams,
    EarlyStoppingParams,
    MlflowParams,
    TrackingParams,
    VideoParams,
)
from rl_training.experiment.configuration.validation import Problem, build_record, check_value, plain
from rl_training.experiment.tasks import TASKS


def check_blocks(values: dict[str, Any]) -> list[Problem]:
    """Return the problems of all blocks."""
    checks = (_check_tracking, _check_benchmark, _check_early_stopping, _check_video)
    return [problem for check in checks for problem in check(values)]


def _check_tracking(values: dict[str, Any]) -> list[Problem]:
    problems = _checked(values, "tracking", TrackingParams)
    if problems or (values.get("benchmark") or {}).get("executor") != "ray":
        return problems
    mlflow = build_record(TrackingParams, values["tracking"]).trackers.get("mlflow")
    if isinstance(mlflow, MlflowParams) and mlflow.uri is None:
        text = "a worker of Ray trains in a temporary directory and would lose its store; name a server both can reach"
        return [Problem(("tracking", "mlflow", "uri"), text)]
    return []


def _check_video(values: dict[str, Any]) -> list[Problem]:
    return _checked(values, "video", VideoParams) if values.get("video") else []


def _check_benchmark(values: dict[str, Any]) -> list[Problem]:
    return _checked(values, "benchmark", BenchmarkParams)


def _check_early_stopping(values: dict[str, Any]) -> list[Problem]:
    block = values.get("early_stopping")
    if not block:
        return []
    if TASKS in values.get("env_kwargs", {}) and isinstance(block, Mapping) and "metric" not in block:
        text = "the mean return of several tasks says nothing; name eval_normalized_mean or eval_return_mean/<task>"
        return [Problem(("early_stopping", "metric"), text)]
    return _checked(values, "early_stopping", EarlyStoppingParams)


def _checked(values: dict[str, Any], key: str, record: type) -> list[Problem]:
    block, problems = check_value(record, values.get(key, {}), (key,))
    if not problems:
        values[key] = plain(block)
    return problems
