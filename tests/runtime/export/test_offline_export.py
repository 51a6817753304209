"""Policies that were learned from a dataset are exported like others."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_runs import TASKS, offline_config, write_datasets
from rl_training.runtime.export.export import export_policy
from rl_training.runtime.workflows import train

pytest.importorskip("minari")


def _passes(task: str, folder: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    write_datasets(folder / "datasets", monkeypatch)
    run = train(offline_config(task, folder / "runs", eval_interval=None)).run_dir
    record = export_policy(run, format=format, episodes=2).record  # type: ignore[arg-type]
    assert record["parity"]["passed"]


def test_a_policy_of_an_offline_run_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _passes("iql_discrete", tmp_path, monkeypatch, "pt2")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_offline_algorithm_exports_to_onnx(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _passes(task, tmp_path, monkeypatch, "onnx")
