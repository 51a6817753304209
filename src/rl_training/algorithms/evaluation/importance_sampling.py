"""Importance sampling and doubly robust estimates of a policy's discounted return.

E episodes are padded to T steps, the length of the longest; after an episode's end everything is 0. All arrays are
float64, since products of many ratios leave the range of single precision. An estimate may be asked for several
resamples at once: `counts` [R, E] says how often each episode occurs in each of R resamples.
"""

from __future__ import annotations

import numpy as np

_LARGEST_EXPONENT = 300.0  # sums of such weights are still far from overflow in double precision


def pad_episodes(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the values [N] of consecutive episodes as [E, T], padded with 0; `lengths` [E] sum to N."""
    padded = np.zeros((len(lengths), int(lengths.max())))
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return padded


def discounted_sum(values: np.ndarray, gamma: float) -> np.ndarray:
    """Return the sums of gamma^t values[..., t] over the steps of [..., T]."""
    return values @ gamma ** np.arange(values.shape[-1])


def cumulative_log_ratio(log_ratio: np.ndarray) -> np.ndarray:
    """Return the logarithms [E, T] of the ratios' products up to and including each step.

    `log_ratio` [E, T] is log pi(a|s) - log b(a|s), of the policy pi and the behaviour b; after its end an episode keeps
    its weight.
    """
    return np.cumsum(log_ratio, axis=1, dtype=np.float64)


def per_decision(log_weight: np.ndarray, values: np.ndarray, gamma: float, counts: np.ndarray) -> np.ndarray:
    """Return per-decision importance sampling estimates [R]: the mean of sums of gamma^t weight_t value_t.

    With rewards as `values` it estimates the policy's discounted return (Precup, Sutton & Singh 2000): a step's reward
    is weighted by the ratios of the actions up to it, not by those that came later. It is unbiased.
    """
    weight = np.exp(np.minimum(log_weight, _LARGEST_EXPONENT))
    return counts @ discounted_sum(weight * values, gamma) / counts.sum(axis=1)


def weighted_per_decision(log_weight: np.ndarray, values: np.ndarray, gamma: float, counts: np.ndarray) -> np.ndarray:
    """Return weighted per-decision importance sampling estimates [R]: at each step the weights sum to 1.

    It is biased towards the behaviour and consistent, with a far smaller variance. Steps at which all weights of a
    resample are 0 count as 0.
    """
    largest = log_weight.max(axis=0)
    weight = np.exp(log_weight - np.where(np.isfinite(largest), largest, 0.0))  # only their proportions matter
    total = counts @ weight  # [R, T]
    means = np.divide(counts @ (weight * values), total, out=np.zeros_like(total), where=total > 0)
    return discounted_sum(means, gamma)


def td_errors(
    reward: np.ndarray, value: np.ndarray, next_value: np.ndarray, terminated: np.ndarray, gamma: float
) -> np.ndarray:
    """Return r + gamma V(s') - Q(s, a) [N]; V(s') of the policy is 0 where the episode terminated.

    `value` is Q(s, a) of the actions that were taken. A truncated episode goes on in V(s').
    """
    return reward + gamma * np.where(terminated, 0.0, next_value) - value


def doubly_robust(
    log_weight: np.ndarray,
    errors: np.ndarray,
    initial_value: np.ndarray,
    gamma: float,
    counts: np.ndarray,
    *,
    weighted: bool,
) -> np.ndarray:
    """Return doubly robust estimates [R]: the mean of V(s_0), corrected by the weighted TD errors [E, T] of Q.

    It is exact if either Q or the behaviour's probabilities are (Jiang & Li 2016, arXiv 1511.03722, whose recursion
    this sums up). `weighted` normalises the weights at each step (Thomas & Brunskill 2016, arXiv 1604.00923).
    `initial_value` [E] is V(s_0).
    """
    estimate = weighted_per_decision if weighted else per_decision
    return counts @ initial_value / counts.sum(axis=1) + estimate(log_weight, errors, gamma, counts)


def effective_sample_size(log_weight: np.ndarray) -> float:
    """Return how many equally weighted episodes would give as precise a mean as the weights [E] (Kish 1965)."""
    largest = log_weight.max(initial=-np.inf)
    if not np.isfinite(largest):
        return 0.0
    weight = np.exp(log_weight - largest)
    return float(weight.sum() ** 2 / np.square(weight).sum())


def resample_counts(episodes: int, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """Return how often each of the episodes occurs in each bootstrap resample, [resamples, episodes]."""
    drawn = generator.integers(episodes, size=(resamples, episodes)) + episodes * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.reshape(-1), minlength=resamples * episodes)
    return counts.reshape(resamples, episodes).astype(np.float64)
