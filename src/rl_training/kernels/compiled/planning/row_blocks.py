"""Functions of single rows of matrices in blocks, and their gradients.

A row's columns lie `total * 16` numbers apart in sixteens, and its first sixteen begin at `at`. Widths are multiples of
sixteen unless a function says otherwise. A gradient lies at the same place of `grad` as the numbers of `trace`.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, relu, spread, store, total, where_above
from rl_training.kernels.compiled.planning.exponentials import ascending, exponentials, highest
from rl_training.search.compilation import part

_SMALLEST_RANGE = 1e-5  # of a latent, as in `planning_network`
_SMALLEST_NORM = 1e-8  # as in torch's cosine_similarity
_NEGLIGIBLE = 1e-30  # probabilities below it would make products with subnormal numbers, which are slow


@part()
def norm_relu(
    trace: np.ndarray, at: int, active: int, panel: int, width: int, flat: np.ndarray, gain: int, shift: int, eps: float
) -> float:
    """Normalise a row in place, write relu(gain * row + shift) at `active`, return the inverse deviation."""
    sums, squares = spread(0.0), spread(0.0)
    for block in range(width // LANES):
        sums = sums + load(trace, at + block * panel)
    mean = spread(np.float32(total(sums) / np.float32(width)))
    for block in range(width // LANES):
        apart = load(trace, at + block * panel) - mean
        squares = apart * apart + squares
    inverse = np.float32(1.0 / math.sqrt(total(squares) / width + eps))
    for block in range(width // LANES):
        normed = (load(trace, at + block * panel) - mean) * spread(inverse)
        store(trace, at + block * panel, normed)
        scaled = normed * load(flat, gain + block * LANES) + load(flat, shift + block * LANES)
        store(trace, active + block * panel, relu(scaled))
    return float(inverse)


@part()
def norm_relu_backward(
    trace: np.ndarray, grad: np.ndarray, at: int, active: int, panel: int, width: int, flat: np.ndarray, gain: int,
    shift: int, inverse: float, gradient: np.ndarray,
) -> None:  # fmt: skip
    """Write the gradient with respect to a row before `norm_relu` at `at`, given that of its result at `active`.

    Those of gain and shift are added to the flat `gradient`.
    """
    zero, sums, products = spread(0.0), spread(0.0), spread(0.0)
    for block in range(width // LANES):
        normed = load(trace, at + block * panel)
        given = where_above(load(trace, active + block * panel), zero, load(grad, active + block * panel), zero)
        store(gradient, gain + block * LANES, load(gradient, gain + block * LANES) + given * normed)
        store(gradient, shift + block * LANES, load(gradient, shift + block * LANES) + given)
        given = given * load(flat, gain + block * LANES)
        store(grad, at + block * panel, given)
        sums, products = sums + given, given * normed + products
    mean = spread(np.float32(total(sums) / np.float32(width)))
    along = spread(np.float32(total(products) / np.float32(width)))
    scale = spread(np.float32(inverse))
    for block in range(width // LANES):
        normed = load(trace, at + block * panel)
        store(grad, at + block * panel, (load(grad, at + block * panel) - mean - normed * along) * scale)


@part()
def rescale_row(trace: np.ndarray, at: int, target: int, panel: int, width: int) -> float:
    """Write a row, scaled to [0, 1] by its smallest and its largest number, at `target`; return the range."""
    lows = highs = load(trace, at)
    for block in range(1, width // LANES):
        lanes = load(trace, at + block * panel)
        lows, highs = where_above(lows, lanes, lanes, lows), where_above(lanes, highs, lanes, highs)
    low, high = -highest(spread(0.0) - lows), highest(highs)
    span = max(high - low, np.float32(_SMALLEST_RANGE))
    for block in range(width // LANES):
        scaled = (load(trace, at + block * panel) - spread(low)) / spread(span)
        store(trace, target + block * panel, scaled)
    return float(span)


@part()
def rescale_backward(
    trace: np.ndarray, grad: np.ndarray, at: int, target: int, panel: int, width: int, span: float
) -> None:
    """Write the gradient with respect to a row before `rescale_row` at `at`, given that of its result at `target`."""
    zero, one = spread(0.0), spread(1.0)
    sums, products, lowest, largest = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
    for block in range(width // LANES):
        given, scaled = load(grad, target + block * panel), load(trace, target + block * panel)
        sums, products = sums + given, given * scaled + products
        lowest = lowest + where_above(scaled, zero, zero, one)
        largest = largest + where_above(one, scaled, zero, one)
    # The range's gradient reaches the smallest and the largest number; equal ones share it.
    grad_range = -total(products) if span > np.float32(_SMALLEST_RANGE) else np.float32(0.0)
    to_lowest = spread((-total(sums) - grad_range) / total(lowest))
    to_largest = spread(grad_range / max(total(largest), np.float32(1.0)))
    inverse = spread(np.float32(1.0 / span))
    for block in range(width // LANES):
        scaled = load(trace, target + block * panel)
        given = load(grad, target + block * panel) + where_above(scaled, zero, zero, to_lowest)
        given = given + where_above(one, scaled, zero, to_largest)
        store(grad, at + block * panel, given * inverse)


@part()
def softmax_row(trace: np.ndarray, grad: np.ndarray, at: int, panel: int, width: int) -> float:
    """Write the softmax of logits of any width to `grad`, with zeros behind; return the logarithm of their sum."""
    blocks = (width + LANES - 1) // LANES
    zero, limit, infinite = spread(0.0), spread(np.float32(width)), spread(np.float32(-np.inf))
    top = infinite
    place = ascending()
    for block in range(blocks):
        lanes = where_above(limit, place, load(trace, at + block * panel), infinite)
        top, place = where_above(lanes, top, lanes, top), place + spread(np.float32(LANES))
    highest_logit = highest(top)
    sums, place = spread(0.0), ascending()
    for block in range(blocks):
        powers = exponentials(load(trace, at + block * panel) - spread(highest_logit))
        powers = where_above(limit, place, powers, zero)
        store(grad, at + block * panel, powers)
        sums, place = sums + powers, place + spread(np.float32(LANES))
    normalizer = total(sums)
    inverse = spread(np.float32(1.0) / normalizer)
    for block in range(blocks):
        share = load(grad, at + block * panel) * inverse
        store(grad, at + block * panel, where_above(share, spread(np.float32(_NEGLIGIBLE)), share, zero))
    return float(highest_logit) + math.log(normalizer)


@part()
def scale_row(values: np.ndarray, at: int, panel: int, width: int, factor: float) -> None:
    """Multiply a row of any width in place."""
    for block in range((width + LANES - 1) // LANES):
        store(values, at + block * panel, load(values, at + block * panel) * spread(np.float32(factor)))


@part()
def squash(x: float) -> float:
    """Return what `models.planning.scalar_support.squash` does."""
    size = math.sqrt(abs(x) + 1.0) - 1.0
    return (size if x >= 0 else -size) + 0.001 * x


@part()
def scalar_row(
    trace: np.ndarray, grad: np.ndarray, at: int, panel: int, width: int, target: float, factor: float
) -> float:
    """Return the cross-entropy between logits and the two integers around a squashed number.

    `factor` times its gradient with respect to the logits is written to `grad`.
    """
    size = width // 2
    place = min(max(squash(target), -float(size)), float(size)) + size
    lower = min(int(place), 2 * size - 1)
    share = np.float32(place - lower)
    normalizer = softmax_row(trace, grad, at, panel, width)
    scale_row(grad, at, panel, width, factor)
    below = at + lower // LANES * panel + lower % LANES
    above = at + (lower + 1) // LANES * panel + (lower + 1) % LANES
    grad[below] -= np.float32(factor) * (np.float32(1.0) - share)
    grad[above] -= np.float32(factor) * share
    return normalizer - (float(trace[below]) + share * (float(trace[above]) - float(trace[below])))


@part()
def policy_row(
    trace: np.ndarray, grad: np.ndarray, at: int, panel: int, width: int, policy: np.ndarray, first: int, factor: float
) -> float:
    """Return the cross-entropy between logits and a policy; `factor` times its gradient is written to `grad`."""
    normalizer = softmax_row(trace, grad, at, panel, width)
    known, loss = 0.0, 0.0
    for action in range(width):
        known += policy[first + action]
    scale_row(grad, at, panel, width, factor * known)
    for action in range(width):
        place = at + action // LANES * panel + action % LANES
        wanted = policy[first + action]
        grad[place] -= np.float32(factor) * wanted
        loss += wanted * (normalizer - trace[place])
    return loss


@part()
def cosine_row(trace: np.ndarray, grad: np.ndarray, at: int, goal: int, panel: int, width: int, factor: float) -> float:
    """Return the cosine of two rows; `factor` times its gradient with respect to the first is written to `grad`."""
    products, ours, theirs = spread(0.0), spread(0.0), spread(0.0)
    for block in range(width // LANES):
        one, other = load(trace, at + block * panel), load(trace, goal + block * panel)
        products, ours, theirs = one * other + products, one * one + ours, other * other + theirs
    size = max(math.sqrt(total(ours)), _SMALLEST_NORM)
    both = size * max(math.sqrt(total(theirs)), _SMALLEST_NORM)
    cosine = total(products) / both
    to_goal = spread(np.float32(factor / both))
    back = spread(np.float32(factor * cosine / (size * size)))
    for block in range(width // LANES):
        one, other = load(trace, at + block * panel), load(trace, goal + block * panel)
        store(grad, at + block * panel, other * to_goal - one * back)
    return cosine
