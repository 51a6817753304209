"""Statistics of scores: numbers by hand, rliable's numbers, and how often the intervals hold."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from documents.docs_pages import ROOT, marked_section
from rl_training.errors import AxiomError
from rl_training.experiment.statistics import (
    Interval,
    bootstrap_interval,
    difference_interval,
    interquartile_mean,
    optimality_gap,
    performance_profile,
    performance_profile_band,
    probability_of_improvement,
    probability_of_improvement_interval,
    widened_confidence,
)

RUNS = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0, 3.5, 8.0, 7.0]
OTHERS = [2.0, 7.0, 1.0, 8.0, 2.5, 8.5, 1.5, 2.1, 3.2, 4.4, 0.3, 6.0]
scores_of_runs = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12)


# -- by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([30, 3, 6], 13.0),  # a quarter of three runs is less than one
        ([100, 0, 2, 1, 3], 2.0),
        ([8, 1, 7, 2, 6, 3, 5, 4], 4.5),
        ([[1, 5], [2, 6], [3, 7], [4, 100]], 4.5),
        ({"short": [100], "long": [0, 1, 2, 3]}, 2.0),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_rounded_down_at_either_end(scores: Any, expected: float) -> None:
    assert interquartile_mean(scores) == pytest.approx(expected)


def test_the_optimality_gap_ignores_what_lies_above_the_target() -> None:
    assert optimality_gap([0.5, 2.0, 1.0]) == pytest.approx(1 / 6)
    assert optimality_gap([[0.5, 2.0], [1.0, 4.0]], target=2.0) == pytest.approx(2 - 5.5 / 4)


def test_a_profile_counts_runs_strictly_above_each_threshold() -> None:
    assert performance_profile([2, 1, 4, 2], [0, 1, 2, 4]).tolist() == [1.0, 0.75, 0.25, 0.0]
    assert performance_profile([[2, 1], [4, 2]], [1]).tolist() == [0.75]


def test_probability_of_improvement_counts_ties_half_and_tasks_alike() -> None:
    assert probability_of_improvement([3, 4], [1, 3]) == 3.5 / 4
    assert probability_of_improvement([1, 2, 3], [2, 2]) == 0.5
    assert probability_of_improvement([[3, 0], [4, 0]], [[1, 1], [3, 1]]) == 3.5 / 8
    unequal = probability_of_improvement({"long": [5, 5, 5], "short": [0]}, {"short": [1, 1], "long": [2]})
    assert unequal == 0.5


def test_the_interval_of_two_runs_is_their_range() -> None:
    assert bootstrap_interval([0.0, 1.0]) == Interval(low=0.0, high=1.0)
    assert difference_interval([0.0, 1.0], [10.0, 12.0]) == Interval(-12.0, -9.0)


def test_tasks_are_resampled_on_their_own() -> None:
    assert bootstrap_interval([[0, 10], [0, 10], [0, 10]], np.mean) == Interval(5.0, 5.0)
    assert bootstrap_interval({"short": [0, 0], "long": [10, 10, 10]}, np.mean) == Interval(6.0, 6.0)
    low, high = bootstrap_interval([0, 10, 0, 10, 0, 10], np.mean)
    assert low < 5 < high


def test_a_mapping_of_equal_tasks_is_an_array_of_runs_by_tasks() -> None:
    scores = np.reshape(RUNS, (5, 2))
    by_task = {"task 1": scores[:, 0], "task 2": scores[:, 1]}
    assert bootstrap_interval(by_task) == bootstrap_interval(scores)
    assert bootstrap_interval(dict(reversed(by_task.items()))) == bootstrap_interval(scores)


def test_two_sides_are_resampled_independently() -> None:
    low, high = difference_interval(RUNS, RUNS)
    assert low < 0 < high
    low, high = probability_of_improvement_interval(RUNS, RUNS)
    assert low < 0.5 < high


def test_any_statistic_is_evaluated_as_the_built_in_ones_are() -> None:
    by_hand: dict[Callable[..., Any], Callable[[np.ndarray], float]] = {
        interquartile_mean: lambda scores: interquartile_mean(scores),
        np.mean: lambda scores: float(np.mean(scores)),
        np.median: lambda scores: float(np.median(scores)),
    }
    for at_once, one_by_one in by_hand.items():
        assert bootstrap_interval(RUNS, at_once) == pytest.approx(bootstrap_interval(RUNS, one_by_one), abs=1e-12)
        difference = difference_interval(RUNS, OTHERS, at_once)
        assert difference == pytest.approx(difference_interval(RUNS, OTHERS, one_by_one), abs=1e-12)


def test_the_seed_decides_the_interval() -> None:
    assert bootstrap_interval(RUNS, seed=1) == bootstrap_interval(RUNS, seed=1)
    assert bootstrap_interval(RUNS, seed=1, resamples=50) != bootstrap_interval(RUNS, seed=2, resamples=50)


def test_more_confidence_makes_a_wider_interval() -> None:
    narrow, wide = (bootstrap_interval(RUNS, confidence=confidence) for confidence in (0.5, 0.95))
    assert wide.low < narrow.low < interquartile_mean(RUNS) < narrow.high < wide.high


@pytest.mark.parametrize(
    ("run_counts", "shortfall", "freedom"),
    [
        ([[10]], 10 / 9, 9),
        ([[4, 4, 4]], 12 / 9, 9),
        ([[3, 7]], 10 / 8, 8),
        ([[10], [10]], 10 / 9, 18),
        ([[3], [20]], (1 / 2 + 1 / 19) / (1 / 3 + 1 / 20), (1 / 2 + 1 / 19) ** 2 / (1 / 2**3 + 1 / 19**3)),
    ],
)
def test_few_runs_widen_the_percentiles(run_counts: list[list[int]], shortfall: float, freedom: float) -> None:
    for confidence in (0.8, 0.9, 0.95, 0.99):
        reach = np.sqrt(shortfall) * stats.t.ppf((1 + confidence) / 2, freedom)
        expected = 1 - 2 * stats.norm.cdf(-reach)
        tolerance = 1e-6 if freedom >= 9 else 1e-4  # the series for Student's quantile converges with the runs
        assert widened_confidence(confidence, *run_counts) == pytest.approx(expected, abs=tolerance)


def test_many_runs_widen_nothing() -> None:
    assert widened_confidence(0.95, [100_000]) == pytest.approx(0.95, abs=1e-5)


# -- properties ------------------------------------------------------------------------------------


@given(scores_of_runs, st.randoms(use_true_random=False))
def test_the_order_of_runs_makes_no_difference(scores: list[float], random: Any) -> None:
    shuffled = random.sample(scores, len(scores))
    assert interquartile_mean(shuffled) == interquartile_mean(scores)
    assert bootstrap_interval(shuffled, resamples=50) == bootstrap_interval(scores, resamples=50)
    assert difference_interval(shuffled, RUNS, resamples=50) == difference_interval(scores, RUNS, resamples=50)


@given(scores_of_runs)
def test_means_and_intervals_lie_within_the_scores(scores: list[float]) -> None:
    low, high = bootstrap_interval(scores, resamples=50)
    slack = 1e-9 * max(map(abs, scores))  # the mean of equal numbers is not always that number
    assert low <= high
    assert min(scores) - slack <= low
    assert high <= max(scores) + slack
    assert min(scores) - slack <= interquartile_mean(scores) <= max(scores) + slack


@given(scores_of_runs, st.floats(0.01, 100), st.floats(-1e4, 1e4))
def test_means_and_intervals_move_with_the_scale(scores: list[float], factor: float, offset: float) -> None:
    moved = [factor * score + offset for score in scores]
    tolerance = 1e-9 * (1 + factor * max(map(abs, scores)) + abs(offset))
    assert interquartile_mean(moved) == pytest.approx(factor * interquartile_mean(scores) + offset, abs=tolerance)
    for end, moved_end in zip(bootstrap_interval(scores), bootstrap_interval(moved), strict=True):
        assert moved_end == pytest.approx(factor * end + offset, abs=tolerance)


@given(scores_of_runs, scores_of_runs)
def test_improvement_over_each_other_is_certain(a: list[float], b: list[float]) -> None:
    there, back = probability_of_improvement(a, b), probability_of_improvement(b, a)
    assert 0 <= there <= 1
    assert there + back == pytest.approx(1, abs=1e-12)
    assert probability_of_improvement(a, a) == 0.5
    low, high = probability_of_improvement_interval(a, b, resamples=50)
    assert 0 <= low <= high <= 1


@given(scores_of_runs, st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8).map(sorted))
def test_profiles_and_their_bands_fall_from_one_to_nothing(scores: list[float], thresholds: list[float]) -> None:
    for profile in (performance_profile(scores, thresholds), *performance_profile_band(scores, thresholds)):
        assert profile.shape == (len(thresholds),)
        assert (np.diff(profile) <= 0).all()
        assert ((profile >= 0) & (profile <= 1)).all()


# -- rliable ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rliable() -> Any:
    """The package, which takes seconds to import."""
    from rliable import library, metrics

    return SimpleNamespace(library=library, metrics=metrics)


def tied_scores(seed: int, runs: int, tasks: int) -> np.ndarray:
    """Scores of which some are equal, sorted as the bootstrap sorts them."""
    return np.sort(np.random.default_rng(seed).normal(5, 3, (runs, tasks)).round(1), axis=0)


@pytest.mark.parametrize("runs", range(1, 13))
@pytest.mark.parametrize("tasks", [1, 3])
def test_aggregates_are_rliables(rliable: Any, runs: int, tasks: int) -> None:
    a, b = tied_scores(1, runs, tasks), tied_scores(2, 5, tasks)
    thresholds = np.linspace(-2, 12, 29)
    assert interquartile_mean(a) == pytest.approx(rliable.metrics.aggregate_iqm(a), abs=1e-9)
    assert optimality_gap(a, 6.0) == pytest.approx(rliable.metrics.aggregate_optimality_gap(a, 6.0), abs=1e-9)
    expected = rliable.metrics.probability_of_improvement(a, b)
    assert probability_of_improvement(a, b) == pytest.approx(expected, abs=1e-9)
    expected = rliable.library.score_distributions(a, thresholds)
    assert performance_profile(a, thresholds) == pytest.approx(expected, abs=1e-9)


RESAMPLES = 300


@pytest.fixture
def same_draws(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes rliable draw the runs that our bootstrap draws, for one bootstrap of scores of these shapes."""

    def prepare(seed: int, *shapes: tuple[int, int]) -> None:
        generator = np.random.default_rng(seed)
        draws = [
            np.stack([generator.integers(runs, size=(RESAMPLES, runs)) for _ in range(tasks)], axis=-1)
            for runs, tasks in shapes
        ]
        in_order = (of_side[resample] for resample in range(RESAMPLES) for of_side in draws)

        def choice(runs: int, shape: tuple[int, int], replace: bool) -> np.ndarray:
            drawn = next(in_order)
            assert drawn.shape == shape
            return drawn

        monkeypatch.setattr(np.random, "choice", choice)

    return prepare


def rliables_interval(
    library: Any,
    scores: np.ndarray | list[np.ndarray],
    statistic: Callable[..., float],
    run_counts: Sequence[Sequence[int]],
) -> np.ndarray:
    size = widened_confidence(0.95, *run_counts)
    _, intervals = library.get_interval_estimates(
        {"": scores}, lambda *sides: np.array([statistic(*sides)]), reps=RESAMPLES, confidence_interval_size=size
    )
    return intervals[""][:, 0]


def test_intervals_are_rliables_at_the_widened_confidence(rliable: Any, same_draws: Callable[..., None]) -> None:
    library, metrics = rliable.library, rliable.metrics
    a, b = tied_scores(1, 10, 3), tied_scores(2, 7, 3)
    counts = ([10] * 3, [7] * 3)
    same_draws(4, a.shape)
    expected = rliables_interval(library, a, metrics.aggregate_iqm, counts[:1])
    assert bootstrap_interval(a, seed=4, resamples=RESAMPLES) == pytest.approx(expected, abs=1e-9)
    same_draws(5, a.shape, b.shape)
    expected = rliables_interval(library, [a, b], metrics.probability_of_improvement, counts)
    ours = probability_of_improvement_interval(a, b, seed=5, resamples=RESAMPLES)
    assert ours == pytest.approx(expected, abs=1e-9)
    same_draws(6, a.shape, b.shape)
    expected = rliables_interval(
        library, [a, b], lambda x, y: metrics.aggregate_iqm(x) - metrics.aggregate_iqm(y), counts
    )
    assert difference_interval(a, b, seed=6, resamples=RESAMPLES) == pytest.approx(expected, abs=1e-9)


def test_profile_bands_are_rliables_at_the_widened_confidence(rliable: Any, same_draws: Callable[..., None]) -> None:
    scores, thresholds = tied_scores(1, 10, 3), np.linspace(-2, 12, 15)
    same_draws(7, scores.shape)
    size = widened_confidence(0.95, [10] * 3)
    _, bands = rliable.library.create_performance_profile(
        {"": scores}, thresholds, reps=RESAMPLES, confidence_interval_size=size
    )
    ours = performance_profile_band(scores, thresholds, seed=7, resamples=RESAMPLES)
    assert np.stack(ours) == pytest.approx(bands[""], abs=1e-9)


# -- coverage --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulation() -> Any:
    spec = importlib.util.spec_from_file_location("interval_coverage", ROOT / "benchmarks" / "interval_coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_simulated_populations_have_the_interquartile_mean_they_are_said_to_have(simulation: Any) -> None:
    drawn = np.random.default_rng(0).standard_normal(1_000_000)
    for name, population in simulation.POPULATIONS.items():
        assert interquartile_mean(population(drawn)) == pytest.approx(
            simulation.true_interquartile_mean(name), abs=5e-3
        )


@pytest.mark.parametrize("seeds", [10, 20])
@pytest.mark.parametrize("population", ["normal", "skewed"])
def test_intervals_hold_as_often_as_they_promise(simulation: Any, population: str, seeds: int) -> None:
    # At 10 seeds they hold 97.2 % of the time: 3000 experiments are what it takes to tell that from 98 %.
    intervals = simulation.simulate(population, seeds, experiments=3000)
    assert abs(simulation.coverage(intervals, simulation.true_interquartile_mean(population)) - 0.95) <= 0.03


def test_the_stored_coverage_is_within_three_points_where_the_page_says_so(simulation: Any) -> None:
    rows = {row["seeds"]: row for row in json.loads(simulation.RESULTS.read_text(encoding="utf-8"))["rows"]}
    for seeds in (10, 20):
        for name in (*simulation.POPULATIONS, "difference", "mean"):
            assert abs(rows[seeds][name] - 0.95) <= 0.03, (seeds, name)
    assert rows[10]["unwidened mean"] < 0.92


def test_the_coverage_on_the_page_is_the_stored_one(simulation: Any) -> None:
    stored = json.loads(simulation.RESULTS.read_text(encoding="utf-8"))
    command = "python benchmarks/interval_coverage.py --render-only"
    shown = marked_section(simulation.PAGE, "coverage")
    assert shown == simulation.render(stored), f"the page is out of date; run: {command}"


def test_the_stored_coverage_is_that_of_these_intervals(simulation: Any) -> None:
    stored = json.loads(simulation.RESULTS.read_text(encoding="utf-8"))
    again = simulation.measure(10, experiments=300)
    (row,) = (row for row in stored["rows"] if row["seeds"] == 10)
    assert again.keys() == row.keys()
    assert again == pytest.approx(row, abs=0.05)


# -- mistakes --------------------------------------------------------------------------------------

AGGREGATES: list[Callable[[Any], Any]] = [
    interquartile_mean,
    optimality_gap,
    bootstrap_interval,
    lambda scores: performance_profile(scores, [0.0]),
    lambda scores: performance_profile_band(scores, [0.0]),
    lambda scores: probability_of_improvement(RUNS, scores),
    lambda scores: probability_of_improvement_interval(RUNS, scores),
    lambda scores: difference_interval(RUNS, scores),
]


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "there are no scores of task 1: give the score of at least one finished run"),
        ({}, "there are no scores: give the score of at least one finished run"),
        ({"CartPole-v1": [], "Pendulum-v1": [1]}, "there are no scores of CartPole-v1: give"),
        (np.zeros((0, 2)), "there are no scores of task 1: give"),
        (np.zeros((2, 0)), "there are no scores: give"),
        ([1.0, float("nan"), 2.0], "run 2 of task 1 has the score nan: leave out runs that have none"),
        ([[1.0, 2.0], [3.0, float("inf")]], "run 2 of task 2 has the score inf: leave out runs that have none"),
        ({"Pendulum-v1": [None, 2.0]}, "run 1 of Pendulum-v1 has the score nan: leave out runs that have none"),
        ([[1.0], [2.0, 3.0]], "give a mapping from each task to its runs"),
        (["a"], "scores are numbers, [runs] or [runs, tasks], and this is something else: "),
        (np.zeros((2, 2, 2)), "and this is an array of 3 dimensions: "),
        (3.0, "and this is an array of 0 dimensions: "),
        ({"CartPole-v1": [[1.0], [2.0]]}, "and this is an array of 2 dimensions: "),
    ],
    ids=str,
)
def test_scores_that_are_none_are_refused(aggregate: Callable[[Any], Any], scores: Any, message: str) -> None:
    with pytest.raises(AxiomError) as error:
        aggregate(scores)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: bootstrap_interval([1.0]), "an interval needs at least two"),
        (lambda: bootstrap_interval([[1.0, 2.0]]), "an interval needs at least two"),
        (lambda: difference_interval([1.0, 2.0], [1.0]), "an interval needs at least two"),
        (lambda: performance_profile_band([1.0], [0.0]), "an interval needs at least two"),
        (lambda: bootstrap_interval(RUNS, confidence=95), "a confidence lies between 0 and 1, and 95 does not"),
        (lambda: bootstrap_interval(RUNS, resamples=0), "at least one resample, and 0 were asked for"),
        (
            lambda: probability_of_improvement({"CartPole-v1": [1.0]}, {"Pendulum-v1": [1.0]}),
            "only one of the two sides has scores of CartPole-v1, Pendulum-v1: compare them on the same tasks",
        ),
        (lambda: probability_of_improvement_interval(RUNS, np.ones((3, 2))), "has scores of task 2: compare"),
        (lambda: difference_interval(RUNS, np.ones((3, 2))), "has scores of task 2: compare"),
    ],
)
def test_what_cannot_be_computed_is_refused(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises(AxiomError) as error:
        mistake()
    assert message in str(error.value)
