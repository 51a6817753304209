"""Plans, records and aggregates of sweeps over seeds, and the file that summarises them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import tiny_config
from rl_training.errors import ConfigError, StorageError
from rl_training.experiment import sweeps
from rl_training.experiment.benchmarking import (
    SweepSummary,
    aggregate_numeric_metrics,
    aggregate_sweep,
    new_summary_path,
    read_summary,
    write_summary,
)
from rl_training.experiment.machine import CoreLimit
from rl_training.experiment.sweeps import (
    BenchmarkRunRecord,
    SeedSweepPlan,
    chosen_executor,
    jobs_at_once,
    parse_seeds,
    resolve_benchmark_seeds,
    trains_in_this_process,
)

# -- seeds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "steps", "cores", "jobs"),
    [
        ({"jobs": "auto"}, 100_000, 2, 2),
        ({"jobs": "auto"}, 100_000, 8, 3),  # not more than seeds
        ({"jobs": "auto"}, 100_000, 1, 1),
        ({"jobs": "auto"}, 1_000, 8, 1),  # starting processes would take longer
        ({"jobs": 2}, 1_000, 1, 2),
        ({}, 100_000, 8, 1),
    ],
)
def test_auto_jobs_use_the_cores_that_there_are(
    block: dict[str, Any], steps: int, cores: int, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "usable_cores", lambda: CoreLimit(cores, ""))
    config = tiny_config(tmp_path, total_timesteps=steps, benchmark={"seeds": [1, 2, 3], **block})
    assert jobs_at_once(config) == jobs
    assert chosen_executor(config) == ("processes" if jobs > 1 else "serial")


def test_a_plan_keeps_the_order_of_its_seeds() -> None:
    assert SeedSweepPlan((5, 3, 0)).seeds == (5, 3, 0)
    assert SeedSweepPlan([5, 3]).seeds == (5, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("seeds", [(), (1, 1), (-3,), ("a",), (1.5,), (True,), None])
def test_a_plan_needs_distinct_non_negative_integers(seeds: Any) -> None:
    with pytest.raises(ConfigError, match=r"^benchmark.seeds: must be "):
        SeedSweepPlan(seeds)


def test_seeds_of_a_configuration(tmp_path: Path) -> None:
    assert resolve_benchmark_seeds(tiny_config(tmp_path)) == ()
    assert resolve_benchmark_seeds(tiny_config(tmp_path, benchmark={"seeds": None})) == ()
    assert resolve_benchmark_seeds(tiny_config(tmp_path, benchmark={"seeds": [3, 5]})) == (3, 5)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("1,2,3", [1, 2, 3]),
        (" 4 , 7 ", [4, 7]),
        ("1-10", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("1-3,7", [1, 2, 3, 7]),
        ("0 - 1, 5-5", [0, 1, 5]),
        ("", []),
        ("1,,2", [1, "", 2]),
        ("-3", [-3]),
        ("a", ["a"]),
        ("1.5", ["1.5"]),
    ],
)
def test_the_text_of_the_flag_is_split_and_left_for_the_configuration_to_check(text: str, seeds: list[Any]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("block", "expected"),
    [({}, True), ({"jobs": 2}, False), ({"executor": "processes"}, False), ({"executor": "serial"}, True)],
)
def test_which_sweeps_train_in_this_process(tmp_path: Path, block: dict[str, Any], expected: bool) -> None:
    config = tiny_config(tmp_path, benchmark={"seeds": [1], **block})
    assert trains_in_this_process(config) is expected


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (
            {"jobs": 2, "executor": "serial"},
            "benchmark.jobs: 2 does not go with executor serial: use executor processes",
        ),
        ({"jobs": 2, "executor": "ray"}, "benchmark.jobs: 2 does not go with executor ray: a cluster trains"),
        ({"ray_address": "auto"}, "benchmark.ray_address: is read by executor ray only"),
        ({"executor": "threads"}, "benchmark.executor: must be one of serial, processes, ray"),
        ({"jobs": 0}, "benchmark.jobs: must be an integer >= 1"),
    ],
)
def test_executors_that_do_not_fit_are_refused(tmp_path: Path, block: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_config(tmp_path, benchmark={"seeds": [1], **block})
    assert str(error.value).startswith(problem)


# -- aggregates ------------------------------------------------------------------------------------


def test_aggregates_by_hand() -> None:
    rows = [{"score": 1, "loss": 0.5}, {"score": 4, "loss": 0.5}, {"score": 4, "loss": 0.5}]
    assert aggregate_numeric_metrics(rows) == {
        "score_mean": 3.0,
        "score_std": math.sqrt(2.0),  # deviations -2, 1, 1: 6 / 3
        "score_min": 1.0,
        "score_max": 4.0,
        "loss_mean": 0.5,
        "loss_std": 0.0,
        "loss_min": 0.5,
        "loss_max": 0.5,
    }


def test_one_row_has_no_spread() -> None:
    aggregates = aggregate_numeric_metrics([{"score": 0.1}])
    assert aggregates == {"score_mean": 0.1, "score_std": 0.0, "score_min": 0.1, "score_max": 0.1}


def test_no_rows_give_no_aggregates() -> None:
    assert aggregate_numeric_metrics([]) == {}


@pytest.mark.parametrize("odd", [True, None, "text", float("nan"), float("inf"), [1.0]])
@pytest.mark.parametrize("first", [True, False])
def test_only_metrics_that_are_finite_numbers_in_every_row_count(odd: Any, first: bool) -> None:
    rows = [{"score": 1.0, "odd": odd, "rare": 1.0}, {"score": 2.0, "odd": 3.0}]
    aggregates = aggregate_numeric_metrics(rows if first else rows[::-1])
    assert {name.rpartition("_")[0] for name in aggregates} == {"score"}


def test_numpy_numbers_are_numbers() -> None:
    assert aggregate_numeric_metrics([{"a": np.float32(2.0), "b": np.int64(3)}])["b_mean"] == 3.0


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=8), st.randoms())
def test_aggregates_lie_within_their_rows_and_do_not_depend_on_the_order(values: list[float], random: Any) -> None:
    rows = [{"x": value} for value in values]
    aggregates = aggregate_numeric_metrics(rows)
    assert min(values) == aggregates["x_min"] <= aggregates["x_mean"] <= aggregates["x_max"] == max(values)
    assert 0.0 <= aggregates["x_std"] <= aggregates["x_max"] - aggregates["x_min"]
    random.shuffle(rows)
    assert aggregate_numeric_metrics(rows) == aggregates


def record(seed: int, score: float, **fields: Any) -> BenchmarkRunRecord:
    return BenchmarkRunRecord(seed, Path(f"runs/{seed}"), None, {"eval_return_mean": score}, **fields)


def test_the_interquartile_mean_of_four_seeds_drops_the_extremes() -> None:
    aggregates = aggregate_sweep([record(seed, score) for seed, score in enumerate([0.0, 10.0, 20.0, 1000.0])])
    assert aggregates["benchmark_run_count"] == 4
    assert aggregates["eval_return_mean_iqm"] == 15.0
    assert 0.0 <= aggregates["eval_return_mean_iqm_low"] < 15.0 < aggregates["eval_return_mean_iqm_high"] <= 1000.0


@pytest.mark.parametrize("seeds", [1, 2])
def test_below_three_seeds_there_is_no_interval(seeds: int) -> None:
    aggregates = aggregate_sweep([record(seed, float(seed)) for seed in range(seeds)])
    assert "eval_return_mean_iqm" in aggregates
    assert not [name for name in aggregates if name.endswith(("_low", "_high"))]


def test_the_score_of_several_tasks_is_what_is_comparable_and_each_of_them() -> None:
    total = {"eval_return_mean": 99.0}
    runs = [
        BenchmarkRunRecord(seed, metrics={**total, "eval_normalized_mean": share, "eval_return_mean/a": score})
        for seed, (share, score) in enumerate([(0.5, 0.0), (0.6, 10.0), (0.8, 20.0), (0.9, 1000.0)])
    ]
    aggregates = aggregate_sweep(runs)
    assert aggregates["eval_normalized_mean_iqm"] == pytest.approx(0.7)
    assert aggregates["eval_return_mean/a_iqm"] == pytest.approx(15.0)
    assert aggregates["eval_return_mean/a_iqm_low"] < 15.0 < aggregates["eval_return_mean/a_iqm_high"]
    assert "eval_return_mean_iqm" not in aggregates


def test_only_completed_seeds_enter_the_aggregates() -> None:
    odd = [record(seed, 1e9, status=status) for seed, status in enumerate(["failed", "interrupted", "running"])]
    aggregates = aggregate_sweep([*odd, record(8, 1.0), BenchmarkRunRecord(9, status="pending"), record(7, 2.0)])
    assert (aggregates["benchmark_run_count"], aggregates["eval_return_mean_max"]) == (2, 2.0)


def test_without_evaluations_there_is_no_score() -> None:
    runs = [BenchmarkRunRecord(seed, metrics={"global_step": 5}) for seed in (1, 2, 3)]
    assert set(aggregate_sweep(runs)) == {
        "benchmark_run_count",
        *(f"global_step_{part}" for part in ("mean", "std", "min", "max")),
    }


def test_the_order_in_which_seeds_ended_changes_nothing() -> None:
    runs = [record(seed, score) for seed, score in enumerate([0.1, 0.7, 0.3, 0.9, 0.2])]
    assert aggregate_sweep(runs) == aggregate_sweep(runs[::-1])


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture
def summary() -> SweepSummary:
    failed = BenchmarkRunRecord(5, status="failed", error="RuntimeError: no", traceback="Traceback ...")
    done = record(3, 2.0, duration_seconds=1.5, resume_mode="exact", best_checkpoint_path=Path("runs/3/checkpoints/x"))
    return SweepSummary({"algo": "ppo"}, (done, failed), "2026-01-01T00:00:00+00:00")


def test_a_summary_comes_back_as_it_was_written(summary: SweepSummary, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, summary)
    assert read_summary(path) == summary
    content = json.loads(path.read_text())
    assert content["aggregate_metrics"]["benchmark_run_count"] == 1
    assert content["runs"][0]["run_dir"] == "runs/3"
    assert list(tmp_path.iterdir()) == [path]


def test_a_summary_is_strict_json(tmp_path: Path) -> None:
    odd = BenchmarkRunRecord(1, metrics={"loss": float("nan"), "fine": 1.0})
    write_summary(tmp_path / "summary.json", SweepSummary(None, (odd,), ""))
    content = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["runs"][0]["metrics"] == {"loss": None, "fine": 1.0}


def test_fields_of_a_later_release_are_ignored() -> None:
    assert BenchmarkRunRecord.from_json({"seed": 1, "colour": "red"}) == BenchmarkRunRecord(1)


def test_a_record_moves_with_its_run() -> None:
    here = BenchmarkRunRecord(1, Path("/a/run"), Path("/a/run/checkpoints/step_5"))
    there = here.moved_to(Path("b/run"))
    assert (there.run_dir, there.checkpoint_path) == (Path("b/run"), Path("b/run/checkpoints/step_5"))
    assert there.best_checkpoint_path is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("", "is not the summary of a sweep"),
        ("[]", "is not the summary of a sweep"),
        ("{}", "is not the summary of a sweep"),
        ('{"schema_version": 1, "config": {}, "runs": [{}], "status": "", "created_at_utc": ""}', "is not the summary"),
        ('{"schema_version": 2}', "has schema version 2, this release reads 1"),
    ],
)
def test_a_file_that_is_no_summary_is_refused(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_summary(path)


def test_a_summary_that_cannot_be_written_says_where(summary: SweepSummary, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="the summary of the sweep"):
        write_summary(tmp_path / "file" / "summary.json", summary)


def test_summaries_have_names_of_their_own(tmp_path: Path) -> None:
    one, other = (new_summary_path(tmp_path, "ppo", "ALE/Pong-v5") for _ in range(2))
    assert one != other
    assert one.name.startswith("benchmark_summary__ppo__ALE-Pong-v5__2")
    assert one.suffix == ".json"
