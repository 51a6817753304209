"""Runners: one ordinary run, and one run per seed with an aggregate."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from light_runners import LightRunner
from rl_training.errors import AxiomError, RunFailure
from rl_training.experiment.benchmarking import SweepSummary
from rl_training.experiment.manager import Runner
from rl_training.experiment.sweeps import BenchmarkRunRecord, SeedSweepPlan
from rl_training.runtime.runner import BenchmarkRunner, FunctionRunner
from rl_training.runtime.session import TrainResult
from sweep_runs import read_json


def result_of(seed: int, **fields: Any) -> TrainResult:
    metrics = {"eval_return_mean": float(seed), "global_step": 10, "done": True}
    run_dir = Path(f"runs/seed{seed}")
    return TrainResult(**{"run_dir": run_dir, "checkpoint_path": run_dir / "c", "metrics": metrics, **fields})


def make_runner(seed: int) -> Runner:
    return FunctionRunner(lambda: result_of(seed))


def test_a_function_runner_runs_its_function() -> None:
    assert FunctionRunner(lambda: result_of(4)).run() == result_of(4)


def test_a_sweep_returns_aggregates_and_keeps_the_details_in_its_summary(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "summary.json"
    result = BenchmarkRunner(SeedSweepPlan((3, 5)), make_runner, path).run()
    assert result.metrics["benchmark_run_count"] == 2
    assert result.metrics["eval_return_mean_mean"] == 4.0
    assert result.metrics["eval_return_mean_std"] == 1.0
    assert set(result.metrics) == {
        "benchmark_run_count",
        *(f"{name}_{part}" for name in ("eval_return_mean", "global_step") for part in ("mean", "std", "min", "max")),
        "eval_return_mean_iqm",
    }
    assert (result.status, result.benchmark_summary_path, result.run_dir) == ("completed", path, path.parent)
    assert (result.signal, result.checkpoint_path) == (None, None)
    content = read_json(path)
    assert content["status"] == "completed"
    assert content["aggregate_metrics"] == result.metrics
    assert [run["seed"] for run in content["runs"]] == [3, 5]
    for run in content["runs"]:
        assert run["status"] == "completed"
        assert run["metrics"] == result_of(run["seed"]).metrics
        assert run["run_dir"] == f"runs/seed{run['seed']}"
        assert run["checkpoint_path"] == f"runs/seed{run['seed']}/c"
        assert run["duration_seconds"] >= 0.0


@pytest.mark.parametrize(
    ("error", "sentence", "traceback"),
    [
        (RunFailure("the floor gave way"), "the floor gave way", False),
        (ValueError("odd"), "ValueError: odd", True),
        (SystemExit(0), "sys.exit(0)", False),
    ],
)
def test_a_failing_seed_is_recorded_and_the_others_go_on(
    error: BaseException, sentence: str, traceback: bool, tmp_path: Path
) -> None:
    def fail() -> TrainResult:
        raise error

    path = tmp_path / "summary.json"
    runner = BenchmarkRunner(
        SeedSweepPlan((1, 2, 3)), lambda seed: FunctionRunner(fail) if seed == 2 else make_runner(seed), path
    )
    result = runner.run()
    assert (result.status, result.signal) == ("failed", None)
    assert result.metrics["benchmark_run_count"] == 2
    assert result.metrics["eval_return_mean_mean"] == 2.0  # of 1 and 3
    content = read_json(path)
    assert content["status"] == "failed"
    assert [run["status"] for run in content["runs"]] == ["completed", "failed", "completed"]
    failed = content["runs"][1]
    assert sentence in failed["error"]
    assert ("in fail" in (failed["traceback"] or "")) is traceback
    assert failed["metrics"] == {}


def test_the_summary_is_rewritten_after_every_seed(tmp_path: Path) -> None:
    path, seen = tmp_path / "summary.json", []

    def looking(seed: int) -> Runner:
        def run() -> TrainResult:
            content = read_json(path)
            seen.append((content["status"], [run["status"] for run in content["runs"]]))
            return result_of(seed)

        return FunctionRunner(run)

    BenchmarkRunner(SeedSweepPlan((1, 2)), looking, path).run()
    assert seen == [("running", ["pending", "pending"]), ("running", ["completed", "pending"])]


def test_a_signal_ends_the_sweep_and_the_summary_says_so(tmp_path: Path) -> None:
    def interrupted(seed: int) -> Runner:
        assert seed == 1, "no seed begins after a signal"
        return FunctionRunner(lambda: result_of(1, status="interrupted", signal=signal.SIGTERM))

    path = tmp_path / "summary.json"
    result = BenchmarkRunner(SeedSweepPlan((1, 2)), interrupted, path).run()
    assert (result.status, result.signal) == ("interrupted", signal.SIGTERM)
    content = read_json(path)
    assert (content["status"], [run["status"] for run in content["runs"]]) == (
        "interrupted",
        ["interrupted", "pending"],
    )
    assert result.metrics == {"benchmark_run_count": 0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_two_runs_ends_the_sweep_too(number: int, tmp_path: Path) -> None:
    def run() -> TrainResult:
        os.kill(os.getpid(), number)
        return result_of(1)

    before = signal.getsignal(number)
    result = BenchmarkRunner(SeedSweepPlan((1, 2)), lambda seed: FunctionRunner(run), tmp_path / "summary.json").run()
    assert (result.status, result.signal) == ("interrupted", number)
    assert result.metrics["benchmark_run_count"] == 1
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_a_run_guards_itself_reaches_it(number: int, tmp_path: Path) -> None:
    def slow_to_set_up(seed: int) -> Runner:
        os.kill(os.getpid(), number)
        return LightRunner(seed, tmp_path, "waits")

    result = BenchmarkRunner(SeedSweepPlan((1, 2)), slow_to_set_up, tmp_path / "summary.json").run()
    assert (result.status, result.signal) == ("interrupted", number)
    assert [run["status"] for run in read_json(tmp_path / "summary.json")["runs"]] == ["interrupted", "pending"]


def test_a_signal_after_the_last_seed_changes_nothing(tmp_path: Path) -> None:
    def run() -> TrainResult:
        os.kill(os.getpid(), signal.SIGTERM)
        return result_of(1)

    result = BenchmarkRunner(SeedSweepPlan((1,)), lambda seed: FunctionRunner(run), tmp_path / "summary.json").run()
    assert (result.status, result.signal) == ("completed", None)


def test_an_interruption_from_within_a_run_ends_the_sweep(tmp_path: Path) -> None:
    def run() -> TrainResult:
        raise KeyboardInterrupt

    result = BenchmarkRunner(SeedSweepPlan((1, 2)), lambda seed: FunctionRunner(run), tmp_path / "summary.json").run()
    assert (result.status, result.signal) == ("interrupted", signal.SIGINT)


def test_what_is_known_is_not_trained_again(tmp_path: Path) -> None:
    done = BenchmarkRunRecord(1, Path("runs/seed1"), None, {"eval_return_mean": 7.0}, duration_seconds=5.0)
    halted = BenchmarkRunRecord(2, Path("runs/seed2"), status="interrupted", duration_seconds=1e6)
    known = SweepSummary(None, (done, halted), "2026-01-01T00:00:00+00:00", status="interrupted")
    trained = []

    def noting(seed: int) -> Runner:
        trained.append(seed)
        return make_runner(seed)

    path = tmp_path / "summary.json"
    result = BenchmarkRunner(SeedSweepPlan((1, 2, 3)), noting, path, known=known).run()
    assert trained == [2, 3]
    assert result.metrics["eval_return_mean_mean"] == 4.0  # of 7, 2 and 3
    content = read_json(path)
    assert content["created_at_utc"] == "2026-01-01T00:00:00+00:00"
    assert content["runs"][0] == done.to_json()
    assert content["runs"][1]["duration_seconds"] >= 1e6, "what it took before counts too"


def test_a_summary_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"

    def intruding(seed: int) -> Runner:
        with pytest.raises(AxiomError, match="another process is training the seeds of"):
            BenchmarkRunner(SeedSweepPlan((9,)), make_runner, path).run()
        return make_runner(seed)

    assert BenchmarkRunner(SeedSweepPlan((1,)), intruding, path).run().status == "completed"
    assert BenchmarkRunner(SeedSweepPlan((1,)), make_runner, path).run().status == "completed"


def test_the_least_exact_resume_mode_is_that_of_the_sweep(tmp_path: Path) -> None:
    modes = {1: "exact", 2: "episode-boundary"}
    runner = BenchmarkRunner(
        SeedSweepPlan((1, 2)),
        lambda seed: FunctionRunner(lambda: result_of(seed, resume_mode=modes[seed])),
        tmp_path / "summary.json",
    )
    assert runner.run().resume_mode == "episode-boundary"


def test_the_configuration_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    BenchmarkRunner(SeedSweepPlan((1,)), make_runner, path, config={"algo": "ppo"}).run()
    assert read_json(path)["config"] == {"algo": "ppo"}
