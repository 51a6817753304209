"""Seeds in processes of their own: a child that dies is one failed seed, signals are handed on once, logs come back."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from light_runners import LightRunner
from rl_training.experiment.sweeps import SeedSweepPlan
from rl_training.runtime.runner import BenchmarkRunner
from rl_training.runtime.session import TrainResult
from rl_training.runtime.sweep.process_executor import ProcessExecutor
from sweep_runs import read_json


def run_sweep(directory: Path, faults: dict[int, str], *, jobs: int) -> tuple[TrainResult, list[dict[str, Any]]]:
    """Run a sweep of pretended trainings; each seed has its fault."""
    path = directory / "summary.json"
    runner = BenchmarkRunner(
        SeedSweepPlan(tuple(faults)),
        lambda seed: LightRunner(seed, directory, faults[seed]),
        path,
        executor=ProcessExecutor(jobs),
    )
    return runner.run(), read_json(path)["runs"]


def processes_of(directory: Path) -> list[int]:
    """Return the processes that have trained a seed."""
    return [int(path.name.rpartition("-")[2]) for path in directory.glob("seed*")]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def once(condition: Callable[[], bool], action: Callable[[], None]) -> threading.Thread:
    """Do something as soon as a condition holds."""

    def watch() -> None:
        deadline = time.monotonic() + 60.0
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.005)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_child_that_dies_or_raises_is_a_failed_seed_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rl_training"):
        result, runs = run_sweep(tmp_path, {1: "dies", 2: "raises", 3: "warns"}, jobs=2)
    assert (result.status, result.metrics["benchmark_run_count"]) == ("failed", 1)
    died, raised, completed = runs
    assert [run["status"] for run in runs] == ["failed", "failed", "completed"]
    assert died["error"].startswith("its process ended without a result (signal SIGKILL)")
    assert died["run_dir"] == str(tmp_path), "where it trained is known from its start"
    assert raised["error"] == "ValueError: the floor gave way"
    assert "light_runners.py" in raised["traceback"]
    assert completed["metrics"] == {"eval_return_mean": 3.0}
    assert "seed 3: the floor creaks" in caplog.messages
    pids = processes_of(tmp_path)
    assert len({*pids, os.getpid()}) == 4, "a process of its own for each"
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handed_on_and_a_child_that_has_not_started_is_ended(
    number: signal.Signals, tmp_path: Path
) -> None:
    def both_at_work() -> bool:
        runs = read_json(tmp_path / "summary.json")["runs"] if (tmp_path / "summary.json").exists() else []
        return len(processes_of(tmp_path)) == 2 and "running" in [run["status"] for run in runs]

    sender = once(both_at_work, lambda: os.kill(os.getpid(), number))
    result, runs = run_sweep(tmp_path, {1: "waits", 2: "never starts", 3: "none"}, jobs=2)
    sender.join()
    assert (result.status, result.signal) == ("interrupted", number)
    assert [run["status"] for run in runs] == ["interrupted", "pending", "pending"]
    assert runs[0]["signal"] == number
    assert not any(map(is_alive, processes_of(tmp_path)))
    assert len(processes_of(tmp_path)) == 2, "no seed begins after a signal"


def test_a_sweep_that_cannot_write_its_summary_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_training.errors import StorageError
    from rl_training.runtime import runner as runners

    written = []

    def failing(path: Path, summary: Any) -> None:
        written.append(summary)
        if len(written) > 1:
            raise StorageError("the disk is full")

    monkeypatch.setattr(runners, "write_summary", failing)
    with pytest.raises(StorageError, match="the disk is full"):
        run_sweep(tmp_path, {1: "waits"}, jobs=1)
    (pid,) = processes_of(tmp_path)
    assert not is_alive(pid)
