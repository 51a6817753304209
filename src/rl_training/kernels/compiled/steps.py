"""Steps of optimizers over flat arrays, as `models.optimizers.FlatOptimizer` takes them."""

from __future__ import annotations

import math

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, root, spread, store, total, where_above
from rl_training.models.optimizers import ADAM_BETA2, NEGLIGIBLE, RMSPROP_DECAY, STEPS_BETWEEN_FLUSHES
from rl_training.search.compilation import part


@part()
def norm(gradient: np.ndarray, at: int, size: int) -> float:
    """Return the Euclidean norm of a range that is a multiple of sixteen long."""
    sums = spread(0.0)
    for index in range(at, at + size, LANES):
        lanes = load(gradient, index)
        sums = sums + lanes * lanes
    return math.sqrt(total(sums))


@part()
def clip_factor(norm: float, max_norm: float) -> float:
    """Return the number that limits a gradient's norm; a negative `max_norm` is none."""
    return min(1.0, max_norm / (norm + 1e-6)) if max_norm >= 0 else 1.0


@part()
def adam(
    values: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    gradient: np.ndarray,
    size: int,
    factor: float,
    step: int,
    learning_rate: float,
    beta1: float,
    eps: float,
) -> None:
    """Take the given step, counted from 1, of Adam along the gradient times `factor`."""
    adam_range(values, mean, square, gradient, 0, size, factor, step, learning_rate, beta1, eps)


@part()
def adam_range(
    values: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    gradient: np.ndarray,
    start: int,
    end: int,
    factor: float,
    step: int,
    learning_rate: float,
    beta1: float,
    eps: float,
) -> None:
    """Do what `adam` does for the numbers from `start` to `end`, however many."""
    rate, correction = learning_rate / (1.0 - beta1**step), 1.0 / math.sqrt(1.0 - ADAM_BETA2**step)
    scale, blend = spread(np.float32(factor)), spread(np.float32(1.0 - beta1))
    keep, add = spread(np.float32(ADAM_BETA2)), spread(np.float32(1.0 - ADAM_BETA2))
    rates, corrections = spread(np.float32(rate)), spread(np.float32(correction))
    epsilon = spread(np.float32(eps))
    whole = end - (end - start) % LANES
    for index in range(start, whole, LANES):
        grad = load(gradient, index) * scale
        first = load(mean, index)
        first = first + (grad - first) * blend
        second = load(square, index) * keep + grad * grad * add
        store(mean, index, first)
        store(square, index, second)
        store(values, index, load(values, index) - rates * first / (root(second) * corrections + epsilon))
    for index in range(whole, end):
        one = gradient[index] * np.float32(factor)
        mean[index] += (one - mean[index]) * np.float32(1.0 - beta1)
        square[index] = square[index] * np.float32(ADAM_BETA2) + one * one * np.float32(1.0 - ADAM_BETA2)
        deviation = math.sqrt(square[index]) * np.float32(correction) + np.float32(eps)
        values[index] -= np.float32(rate) * mean[index] / deviation
    if step % STEPS_BETWEEN_FLUSHES == 0:
        flush_range(mean, start, end)
        flush_range(square, start, end)


@part()
def rmsprop(
    values: np.ndarray, square: np.ndarray, gradient: np.ndarray, size: int, factor: float, step: int,
    learning_rate: float, eps: float,
) -> None:  # fmt: skip
    """Take a step of RMSprop along the gradient times `factor`."""
    scale, rate = spread(np.float32(factor)), spread(np.float32(learning_rate))
    keep, add = spread(np.float32(RMSPROP_DECAY)), spread(np.float32(1.0 - RMSPROP_DECAY))
    epsilon = spread(np.float32(eps))
    for index in range(0, size, LANES):
        grad = load(gradient, index) * scale
        second = load(square, index) * keep + grad * grad * add
        store(square, index, second)
        store(values, index, load(values, index) - rate * grad / (root(second) + epsilon))
    if step % STEPS_BETWEEN_FLUSHES == 0:
        flush_subnormals(square, size)


@part()
def flush_subnormals(statistics: np.ndarray, size: int) -> None:
    """Set statistics that have decayed to nothing to zero, before they become subnormal."""
    flush_range(statistics, 0, size)


@part()
def flush_range(statistics: np.ndarray, start: int, end: int) -> None:
    """Do what `flush_subnormals` does for the numbers from `start` to `end`, however many."""
    limit, zero = spread(np.float32(NEGLIGIBLE)), spread(0.0)
    whole = end - (end - start) % LANES
    for index in range(start, whole, LANES):
        lanes = load(statistics, index)
        store(statistics, index, where_above(limit, where_above(zero, lanes, zero - lanes, lanes), zero, lanes))
    for index in range(whole, end):
        if abs(statistics[index]) < NEGLIGIBLE:
            statistics[index] = np.float32(0.0)


@part()
def polyak(target: np.ndarray, values: np.ndarray, start: int, end: int, tau: float) -> None:
    """Move a target network's numbers from `start` to `end` towards the values, by the share `tau` of the way."""
    share, whole = spread(np.float32(tau)), end - (end - start) % LANES
    for index in range(start, whole, LANES):
        lanes = load(target, index)
        store(target, index, lanes + share * (load(values, index) - lanes))
    for index in range(whole, end):
        target[index] += np.float32(tau) * (values[index] - target[index])


@part()
def add_up(partial: np.ndarray, start: int, end: int, gradient: np.ndarray) -> float:
    """Write the sum of partial gradients [parts, size] from `start` to `end`, and return the sum of its squares.

    A single one is the gradient itself.
    """
    squares, rest = spread(0.0), 0.0
    whole = end - (end - start) % LANES
    for index in range(start, whole, LANES):
        lanes = load(partial[0], index)
        for other in range(1, len(partial)):
            lanes = lanes + load(partial[other], index)
        squares = squares + lanes * lanes
        if len(partial) > 1:
            store(gradient, index, lanes)
    for index in range(whole, end):
        one = partial[0, index]
        for other in range(1, len(partial)):
            one += partial[other, index]
        gradient[index] = one
        rest += one * one
    return total(squares) + rest
