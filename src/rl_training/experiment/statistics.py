"""Statistics of scores of several seeds: aggregates, bootstrap intervals, comparisons.

Scores are one number per run: `[runs]` of one task, `[runs, tasks]`, or a mapping from each task to its runs if their
numbers differ. Aggregates and profiles are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (2021). `docs/statistics.md` describes the intervals and their measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from rl_training.errors import AxiomError

Scores: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
Statistic: TypeAlias = Callable[[np.ndarray], float]
_Tasks: TypeAlias = dict[str, np.ndarray]  # the sorted runs of each task


class Interval(NamedTuple):
    """The two ends of a confidence interval."""

    low: float
    high: float


# -- aggregates ------------------------------------------------------------------------------------


def interquartile_mean(scores: Scores) -> float:
    """Return the mean of the middle half of all scores: a quarter, rounded down, is left out at either end."""
    return float(_interquartile_means(_all_entries(_tasks(scores))))


def optimality_gap(scores: Scores, target: float = 1.0) -> float:
    """Return by how much scores fall short of `target` on average; scores above the target count as equal to it."""
    return float(target - np.minimum(_all_entries(_tasks(scores)), target).mean())


def performance_profile(scores: Scores, thresholds: ArrayLike) -> np.ndarray:
    """Return the fraction of all runs that score strictly above each threshold."""
    return _shares_above(_all_entries(_tasks(scores)), thresholds)


def probability_of_improvement(a: Scores, b: Scores) -> float:
    """Return the probability that a run of `a` scores above a run of `b`, averaged over tasks; ties count half."""
    return float(_improvement(*_same_tasks(a, b)))


# -- intervals -------------------------------------------------------------------------------------


def bootstrap_interval(
    scores: Scores,
    statistic: Statistic = interquartile_mean,
    *,
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Return the interval of a statistic of all scores; the runs of each task are resampled separately.

    `statistic` gets the scores of one resample as a flat array. The order of the runs makes no difference.
    """
    tasks = _tasks(scores)
    values = _evaluate(statistic, _all_entries(_resample(tasks, np.random.default_rng(seed), resamples)))
    return _interval(values, widened_confidence(confidence, _run_counts(tasks)))


def interquartile_band(
    scores: ArrayLike, *, seed: int = 0, resamples: int = 2000, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of the interquartile mean's interval at each point of [runs, points].

    Every point gets the interval of `bootstrap_interval`, with the same resamples for all points.
    """
    ordered = np.sort(_numbers(scores, dimensions=(2,)), axis=0)
    runs = len(ordered)
    draws = np.sort(np.random.default_rng(seed).integers(runs, size=(resamples, runs)), axis=-1)
    # Sorted draws from sorted runs are sorted, so that the weight of each run in the mean of the middle half is known.
    middle = draws[:, runs // 4 : runs - runs // 4]
    weights = np.stack([np.count_nonzero(middle == run, axis=-1) for run in range(runs)], axis=-1) / middle.shape[-1]
    means = weights @ ordered  # [resamples, points]
    low, high = _percentiles(means, widened_confidence(confidence, [runs]))
    return low, high


def difference_interval(
    a: Scores,
    b: Scores,
    statistic: Statistic = interquartile_mean,
    *,
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Return the interval of `statistic(a) - statistic(b)`, both resampled independently."""
    sides, generator = _same_tasks(a, b), np.random.default_rng(seed)
    of_a, of_b = (_evaluate(statistic, _all_entries(_resample(side, generator, resamples))) for side in sides)
    return _interval(of_a - of_b, widened_confidence(confidence, *map(_run_counts, sides)))


def probability_of_improvement_interval(
    a: Scores, b: Scores, *, seed: int = 0, resamples: int = 2000, confidence: float = 0.95
) -> Interval:
    """Return the interval of `probability_of_improvement(a, b)`, both resampled independently."""
    sides, generator = _same_tasks(a, b), np.random.default_rng(seed)
    of_a, of_b = (_resample(side, generator, resamples) for side in sides)
    return _interval(_improvement(of_a, of_b), widened_confidence(confidence, *map(_run_counts, sides)))


def performance_profile_band(
    scores: Scores, thresholds: ArrayLike, *, seed: int = 0, resamples: int = 2000, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of the profile at each threshold, each threshold by itself."""
    tasks = _tasks(scores)
    profiles = _shares_above(_all_entries(_resample(tasks, np.random.default_rng(seed), resamples)), thresholds)
    low, high = _percentiles(profiles, widened_confidence(confidence, _run_counts(tasks)))
    return low, high


def widened_confidence(confidence: float, *run_counts: Sequence[int]) -> float:
    """Return the nominal confidence for which the percentile interval has a coverage of `confidence`.

    `run_counts` contains, for both resampled sides, the number of runs of each task. A bootstrap of few runs has too
    small a spread: the variance is too small by (runs - 1) / runs, and it is itself an estimate, which calls for
    Student's quantiles. Both move the percentiles outwards (Hesterberg, "What Teachers Should Know About the
    Bootstrap", 2015); for many runs nothing changes. Sides of unequal size are pooled as in Welch's test with equal
    spreads.
    """
    if not 0 < confidence < 1:
        raise AxiomError(f"a confidence lies between 0 and 1, and {confidence} does not: use 0.95, for instance")
    runs = [sum(counts) for counts in run_counts]
    freedom = [total - len(counts) for total, counts in zip(runs, run_counts, strict=True)]
    if min(freedom) < 1:
        raise AxiomError("one run per task shows nothing about the spread of runs: an interval needs at least two")
    variance = sum(1 / free for free in freedom)
    shortfall = variance / sum(1 / total for total in runs)
    pooled_freedom = variance**2 / sum(1 / free**3 for free in freedom)
    reach = math.sqrt(shortfall) * _student_quantile((1 + confidence) / 2, pooled_freedom)
    return 1 - 2 * NormalDist().cdf(-reach)


# -- parts -----------------------------------------------------------------------------------------


def _tasks(scores: Scores) -> _Tasks:
    """Return the runs of each task, sorted, so that the order of seeds never changes an interval."""
    if isinstance(scores, Mapping):
        tasks = {task: _numbers(scores[task], dimensions=(1,)) for task in sorted(scores)}
    else:
        columns = np.atleast_2d(_numbers(scores, dimensions=(1, 2)).T)
        tasks = {f"task {number}": runs for number, runs in enumerate(columns, start=1)}
    if not tasks:
        raise AxiomError("there are no scores: give the score of at least one finished run")
    for task, runs in tasks.items():
        if runs.size == 0:
            raise AxiomError(f"there are no scores of {task}: give the score of at least one finished run")
        if not np.isfinite(runs).all():
            run = np.flatnonzero(~np.isfinite(runs))[0]
            raise AxiomError(f"run {run + 1} of {task} has the score {runs[run]}: leave out runs that have none")
    return {task: np.sort(runs) for task, runs in tasks.items()}


def _numbers(scores: ArrayLike, dimensions: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _bad_shape("something else") from error
    if array.ndim not in dimensions:
        raise _bad_shape(f"an array of {array.ndim} dimensions")
    return array


def _bad_shape(found: str) -> AxiomError:
    return AxiomError(
        f"scores are numbers, [runs] or [runs, tasks], and this is {found}: "
        "where tasks differ in their number of runs, give a mapping from each task to its runs"
    )


def _same_tasks(a: Scores, b: Scores) -> tuple[_Tasks, _Tasks]:
    of_a, of_b = _tasks(a), _tasks(b)
    if of_a.keys() != of_b.keys():
        odd = ", ".join(sorted(of_a.keys() ^ of_b.keys()))
        raise AxiomError(f"only one of the two sides has scores of {odd}: compare them on the same tasks")
    return of_a, of_b


def _run_counts(tasks: _Tasks) -> list[int]:
    return [runs.shape[-1] for runs in tasks.values()]


def _all_entries(tasks: _Tasks) -> np.ndarray:
    """Return the concatenated scores of all tasks, [..., runs of all tasks]."""
    return np.concatenate(list(tasks.values()), axis=-1)


def _resample(tasks: _Tasks, generator: np.random.Generator, resamples: int) -> _Tasks:
    """Resample the runs of each task with replacement: [resamples, runs] each."""
    if resamples < 1:
        raise AxiomError(f"a bootstrap needs at least one resample, and {resamples} were asked for: use 2000")
    return {task: runs[generator.integers(runs.size, size=(resamples, runs.size))] for task, runs in tasks.items()}


def _interquartile_means(scores: np.ndarray) -> np.ndarray:
    runs = scores.shape[-1]
    return np.sort(scores, axis=-1)[..., runs // 4 : runs - runs // 4].mean(axis=-1)


# Statistics that are computed for all resamples at once; others are called once per resample.
_AT_ONCE: dict[Callable[..., float], Callable[[np.ndarray], np.ndarray]] = {
    interquartile_mean: _interquartile_means,
    np.mean: lambda scores: np.mean(scores, axis=-1),
    np.median: lambda scores: np.median(scores, axis=-1),
}


def _evaluate(statistic: Statistic, resampled: np.ndarray) -> np.ndarray:
    at_once = _AT_ONCE.get(statistic)
    return at_once(resampled) if at_once else np.array([statistic(scores) for scores in resampled])


def _shares_above(scores: np.ndarray, thresholds: ArrayLike) -> np.ndarray:
    """Return the fractions of [..., runs] above each threshold, [..., thresholds]."""
    limits = np.asarray(thresholds, dtype=np.float64)
    counts = [np.count_nonzero(scores > limit, axis=-1) for limit in limits]
    return np.stack(counts, axis=-1) / scores.shape[-1]


def _improvement(a: _Tasks, b: _Tasks) -> np.ndarray:
    """Return the probability of improvement of each resample: the Mann-Whitney statistic over all pairs of runs."""
    shares = []
    for task in a:
        of_a, of_b = a[task][..., :, None], b[task][..., None, :]
        above, not_below = (np.count_nonzero(won, axis=(-2, -1)) for won in (of_a > of_b, of_a >= of_b))
        shares.append((above + not_below) / (2 * of_a.shape[-2] * of_b.shape[-1]))
    return np.mean(shares, axis=0)


def _percentiles(values: np.ndarray, confidence: float) -> np.ndarray:
    return np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)


def _interval(values: np.ndarray, confidence: float) -> Interval:
    low, high = _percentiles(values, confidence)
    return Interval(float(low), float(high))


def _student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t from the normal quantile and its corrections (Abramowitz and Stegun, 26.7.5).

    Accurate to 0.1 % from three degrees of freedom on; below that the percentiles are the extremes anyway.
    """
    z = NormalDist().inv_cdf(probability)
    corrections = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(correction / freedom**power for power, correction in enumerate(corrections))
