"""Learning curves average distinct seeds of completed runs at common points, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_runs import fake_run
from report_samples import write_curve
from rl_training.errors import AxiomError
from rl_training.experiment.runs import METRICS
from rl_training.experiment.statistics import bootstrap_interval, interquartile_band
from rl_training.zoo.page.curves import MOST_POINTS, Axis, Curve, Line, learning_curve, read_histories, shorter_ranges
from rl_training.zoo.reporting import build_report


def seed_run(root: Path, seed: int, evaluations: Mapping[int, float | None], **settings: Any) -> Path:
    """Write a run whose horizon is the step of its last evaluation."""
    fields = {key: settings.pop(key) for key in ("training", "seconds_per_step") if key in settings}
    run_dir = fake_run(root, seed, changes={"total_timesteps": 100}, **settings)
    write_curve(run_dir, evaluations, **fields)
    return run_dir


def curve_of(root: Path, metric: str = "eval_return_mean", axis: Axis = "steps") -> Curve:
    (place,) = build_report([root]).standings
    return learning_curve(place.entry, read_histories([place.entry]), metric, axis)


# -- over seeds ------------------------------------------------------------------------------------


def test_seeds_evaluated_at_different_steps_are_interpolated_at_the_points_of_all(tmp_path: Path) -> None:
    seed_run(tmp_path, 1, {20: 0.0, 60: 40.0, 100: 80.0})
    seed_run(tmp_path, 2, {40: 100.0, 100: 160.0})
    curve = curve_of(tmp_path)
    assert curve.seeds == 2
    # From 40 on, where both have a value: (20 + 100) / 2, (40 + 120) / 2, (80 + 160) / 2.
    assert curve.x.tolist() == [40, 60, 100]
    assert curve.y.tolist() == [60, 80, 120]


def test_a_curve_starts_at_the_evaluation_before_training(tmp_path: Path) -> None:
    for seed, first in enumerate((20.0, 22.0), start=1):
        write_curve(fake_run(tmp_path, seed), {0: first, 50: 30.0, 100: 40.0}, training={50: 1.0, 100: 2.0})
    for axis in ("steps", "time"):
        curve = curve_of(tmp_path, axis=axis)
        assert (curve.x[0], curve.y[0]) == (0.0, 21.0)


def test_a_curve_is_cut_where_a_shorter_chart_ends() -> None:
    x = np.array([0.0, 10.0, 20.0])
    curve = Curve("a", 3, x, x + 1, x, x + 2, (Line(x + 15, x), Line(x, x)))
    cut = curve.until(15.0)
    assert (cut.x.tolist(), cut.y.tolist()) == ([0, 10, 15], [1, 11, 16])
    assert cut.low is not None
    assert cut.high is not None
    assert (cut.low.tolist(), cut.high.tolist()) == ([0, 10, 15], [2, 12, 17])
    assert [line.x.tolist() for line in cut.unfinished] == [[15], [0, 10, 15]]
    assert curve.until(20.0).x is x
    short = Curve("b", 1, x / 10, x)
    assert shorter_ranges([curve, short]) == [2.0]
    assert shorter_ranges([short]) == shorter_ranges([]) == []


def test_below_three_seeds_there_is_no_interval(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        seed_run(tmp_path, seed, {50: 1.0, 100: 2.0 * seed})
        curve = curve_of(tmp_path)
        assert curve.seeds == seed
        assert (curve.low is not None and curve.high is not None) is (seed == 3)


def test_a_curve_ends_in_the_figures_of_the_leaderboard(tmp_path: Path) -> None:
    for seed in range(1, 7):
        seed_run(tmp_path, seed, {40: float(seed), 100: float(seed**2)})
    (place,) = build_report([tmp_path]).standings
    curve = curve_of(tmp_path)
    assert place.summary is not None
    assert place.summary.interval is not None
    assert curve.low is not None
    assert curve.high is not None
    assert curve.y[-1] == pytest.approx(place.summary.iqm)
    assert (curve.low[-1], curve.high[-1]) == pytest.approx(place.summary.interval)


def test_a_completed_run_that_ended_early_keeps_its_last_value(tmp_path: Path) -> None:
    seed_run(tmp_path, 1, {20: 0.0, 40: 100.0})
    seed_run(tmp_path, 2, {20: 0.0, 100: 0.0})
    curve = curve_of(tmp_path)
    assert curve.x.tolist() == [20, 40, 100]
    assert curve.y.tolist() == [0, 50, 50]


def test_only_the_run_that_stands_for_a_seed_is_averaged(tmp_path: Path) -> None:
    seed_run(tmp_path, 1, {50: 7.0, 100: 7.0}, created=1)
    seed_run(tmp_path, 1, {50: 9.0, 100: 9.0}, created=2)
    seed_run(tmp_path, 1, {50: 99.0}, created=3, status="failed")
    curve = curve_of(tmp_path)
    assert (curve.seeds, curve.y.tolist(), curve.unfinished) == (1, [9, 9], ())


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_a_run_that_was_not_completed_is_a_line_of_its_own_and_never_averaged(status: str, tmp_path: Path) -> None:
    seed_run(tmp_path, 1, {50: 1.0, 100: 2.0})
    seed_run(tmp_path, 2, {25: 500.0, 50: 999.0}, status=status, created=1)
    seed_run(tmp_path, 2, {25: 600.0, 50: 888.0}, status=status, created=2)
    curve = curve_of(tmp_path)
    assert (curve.seeds, curve.y.tolist()) == (1, [1, 2])
    (line,) = curve.unfinished  # the latest attempt
    assert (line.x.tolist(), line.y.tolist()) == ([25, 50], [600, 888])


def test_runs_without_evaluation_have_a_training_curve(tmp_path: Path) -> None:
    for seed in (1, 2):
        seed_run(tmp_path, seed, {}, training={50: 1.0 * seed, 100: 3.0 * seed})
    assert curve_of(tmp_path).empty
    curve = curve_of(tmp_path, "train_return_mean")
    assert (curve.seeds, curve.x.tolist(), curve.y.tolist()) == (2, [50, 100], [1.5, 4.5])


def test_values_that_are_no_finite_number_are_left_out(tmp_path: Path) -> None:
    seed_run(tmp_path, 1, {20: 1.0, 60: None, 100: 3.0}, training={50: None, 100: 4.0})
    assert curve_of(tmp_path).x.tolist() == [20, 100]
    assert curve_of(tmp_path, "train_return_mean").x.tolist() == [100]


def test_a_long_curve_is_thinned_between_its_ends(tmp_path: Path) -> None:
    seed_run(tmp_path, 1, {step: float(step) for step in range(1, 1001)})
    curve = curve_of(tmp_path)
    assert curve.x.size == MOST_POINTS
    assert curve.x[[0, -1]].tolist() == [1, 1000]
    assert np.all(np.diff(curve.x) > 0)
    assert curve.y.tolist() == curve.x.tolist()


# -- over time -------------------------------------------------------------------------------------


def test_the_time_of_an_evaluation_lies_between_the_training_rows_around_it(tmp_path: Path) -> None:
    training = {20: 0.0, 100: 0.0}
    seed_run(tmp_path, 1, {10: 1.0, 60: 2.0, 100: 3.0}, training=training, seconds_per_step=0.5)
    curve = curve_of(tmp_path, axis="time")
    assert curve.x.tolist() == [5, 30, 50]  # half a second per step; evaluating takes none of it
    assert curve.y.tolist() == [1, 2, 3]


def test_seeds_of_different_speed_are_averaged_at_the_same_time(tmp_path: Path) -> None:
    for seed, speed in ((1, 1.0), (2, 2.0)):
        seed_run(tmp_path, seed, {50: 0.0, 100: 100.0}, training={100: 0.0}, seconds_per_step=speed)
    curve = curve_of(tmp_path, axis="time")
    # The quick one is at 100 s when the slow one has just been evaluated, and stays there until 200 s.
    assert curve.x.tolist() == [100, 200]
    assert curve.y.tolist() == [50, 100]


def test_a_run_that_logged_no_times_has_a_curve_over_steps_only(tmp_path: Path) -> None:
    seed_run(tmp_path, 1, {50: 1.0, 100: 2.0})
    assert curve_of(tmp_path, axis="time").empty
    assert curve_of(tmp_path).x.size == 2


# -- damage and intervals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ('{"event": "train", "global_step": broken}\n', "line 1 is not JSON"),
        ('{"event": "train", "global_step": "five"}\n', "row 1 of its metrics has no global_step"),
    ],
)
def test_a_run_with_damaged_rows_has_no_curve_and_is_named(damage: str, reason: str, tmp_path: Path) -> None:
    seed_run(tmp_path, 1, {50: 1.0, 100: 2.0})
    damaged = seed_run(tmp_path, 2, {50: 100.0, 100: 200.0})
    (damaged / METRICS).write_text(damage + (damaged / METRICS).read_text())
    (place,) = build_report([tmp_path]).standings
    histories = read_histories([place.entry])
    (problem,) = histories.problems
    assert problem.startswith(f"{damaged.name} has no curve: ")
    assert reason in problem
    assert learning_curve(place.entry, histories, "eval_return_mean", "steps").y.tolist() == [1, 2]


@given(
    st.integers(2, 9).flatmap(
        lambda runs: st.lists(st.lists(st.floats(-1e6, 1e6), min_size=runs, max_size=runs), min_size=1, max_size=3)
    )
)
def test_a_band_holds_the_interval_of_every_point(points: list[list[float]]) -> None:
    low, high = interquartile_band(np.array(points).T, resamples=200)
    for index, scores in enumerate(points):
        expected = bootstrap_interval(scores, resamples=200)
        assert (low[index], high[index]) == pytest.approx(tuple(expected), rel=1e-9, abs=1e-9)


def test_one_run_has_no_band() -> None:
    with pytest.raises(AxiomError, match="an interval needs at least two"):
        interquartile_band([[1.0, 2.0]])
