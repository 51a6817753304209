"""Action values, row by row: the best actions, learning targets, losses and their gradients.

What a network says about an action is a number, a categorical distribution over a support, or a set of quantiles. The
outputs of all actions lie in blocks [rows, actions * outputs]. NaN among them is chosen and reaches the loss.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import fill, padded
from rl_training.kernels.compiled.lanes import LANES, load, spread, total, where_above
from rl_training.kernels.compiled.policies import element
from rl_training.search.compilation import part

NUMBER, CATEGORICAL, QUANTILE = 0, 1, 2


class Head(NamedTuple):
    """What the outputs of a network mean."""

    kind: int
    actions: int
    outputs: int  # of each action
    support: np.ndarray  # [outputs] float32 of a categorical distribution, evenly spaced
    huber: bool  # of a number: whether large errors count linearly


@part()
def combine_streams(trace: np.ndarray, advantage: int, value: int, rows: int, head: Head) -> None:
    """Overwrite advantages [rows, actions * outputs] by the sum of the state's value and their distance to the mean."""
    for row in range(rows):
        for output in range(head.outputs):
            mean = np.float32(0.0)
            for action in range(head.actions):
                mean += trace[element(advantage, rows, row, action * head.outputs + output)]
            shift = trace[element(value, rows, row, output)] - mean / np.float32(head.actions)
            for action in range(head.actions):
                trace[element(advantage, rows, row, action * head.outputs + output)] += shift


@part()
def normalization(trace: np.ndarray, at: int, rows: int, row: int, first: int, count: int) -> tuple[Any, Any]:
    """Return the largest of a row's logits [first, first + count) and the sum of exp(logit - largest)."""
    largest, normalizer = trace[element(at, rows, row, first)], np.float32(0.0)
    for index in range(first + 1, first + count):
        largest = max(largest, trace[element(at, rows, row, index)])
    for index in range(first, first + count):
        normalizer += math.exp(trace[element(at, rows, row, index)] - largest)
    return largest, normalizer


@part()
def expected_value(trace: np.ndarray, at: int, rows: int, row: int, action: int, head: Head) -> Any:
    """Return the value of an action."""
    first, sums = action * head.outputs, np.float32(0.0)
    if head.kind == CATEGORICAL:
        largest, normalizer = normalization(trace, at, rows, row, first, head.outputs)
        for index in range(head.outputs):
            sums += math.exp(trace[element(at, rows, row, first + index)] - largest) * head.support[index]
        return sums / normalizer
    for index in range(first, first + head.outputs):
        sums += trace[element(at, rows, row, index)]
    return sums / np.float32(head.outputs)


@part()
def best_action(
    trace: np.ndarray, at: int, rows: int, row: int, head: Head, mask: np.ndarray, mask_at: int,
    values: np.ndarray, values_at: int,
) -> int:  # fmt: skip
    """Write the values of all actions and return the first legal one with the largest; an empty mask allows all."""
    chosen, largest = 0, np.float32(-np.inf)
    for action in range(head.actions):
        value = values[values_at + action] = expected_value(trace, at, rows, row, action, head)
        legal = len(mask) == 0 or mask[mask_at + action] != 0
        if legal and (value > largest or (value != value and largest == largest)):
            chosen, largest = action, value
    return chosen


@part()
def write_target(
    trace: np.ndarray,
    at: int,
    rows: int,
    row: int,
    action: int,
    head: Head,
    reward: float,
    discount: float,
    target: np.ndarray,
    target_at: int,
) -> None:
    """Write what the outputs of the action taken should have been, given the successor's outputs and its action."""
    first = action * head.outputs
    if head.kind != CATEGORICAL:
        for index in range(head.outputs):
            target[target_at + index] = reward + discount * trace[element(at, rows, row, first + index)]
        return
    fill(target, target_at, padded(head.outputs), 0.0)
    largest, normalizer = normalization(trace, at, rows, row, first, head.outputs)
    low, high = head.support[0], head.support[head.outputs - 1]
    spacing = (high - low) / np.float32(head.outputs - 1)
    for index in range(head.outputs):
        probability = math.exp(trace[element(at, rows, row, first + index)] - largest) / normalizer
        moved = min(max(reward + discount * head.support[index], low), high)
        position = (moved - low) / spacing
        below = min(int(position), head.outputs - 2) if position >= 0 else 0  # NaN has no place, and must not get one
        share = position - np.float32(below)
        target[target_at + below] += np.float32(probability * (np.float32(1.0) - share))
        target[target_at + below + 1] += np.float32(probability * share)


@part()
def number_loss(
    trace: np.ndarray, at: int, rows: int, row: int, action: int, head: Head, scale: float,
    target: float, grad: np.ndarray, grad_at: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return a row's loss, its absolute error and its value; write the gradient of the loss times `scale`."""
    value = trace[element(at, rows, row, action)]
    error = value - target
    size = abs(error)
    if not head.huber:
        grad[grad_at] = np.float32(2.0) * error * scale
        return error * error, size, value
    inside = np.float32(1.0) if size > 1 else size
    grad[grad_at] = math.copysign(inside, error) * scale
    return inside * (size - np.float32(0.5) * inside), size, value


@part()
def categorical_loss(
    trace: np.ndarray, at: int, rows: int, row: int, action: int, head: Head, scale: float,
    target: np.ndarray, target_at: int, grad: np.ndarray, grad_at: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return a row's cross-entropy, which is its error too, and its value; write the gradient like `number_loss`."""
    first, weight = action * head.outputs, np.float32(0.0)
    largest, normalizer = normalization(trace, at, rows, row, first, head.outputs)
    log_normalizer, loss, value = np.float32(math.log(normalizer)), np.float32(0.0), np.float32(0.0)
    for index in range(head.outputs):
        weight += target[target_at + index]
    for index in range(head.outputs):
        log_p = trace[element(at, rows, row, first + index)] - largest - log_normalizer
        p, wanted = np.float32(math.exp(log_p)), target[target_at + index]
        loss -= wanted * log_p
        value += p * head.support[index]
        grad[grad_at + index] = (p * weight - wanted) * scale
    return loss, loss, value


@part()
def quantile_loss(
    trace: np.ndarray, at: int, rows: int, row: int, action: int, head: Head, scale: float,
    target: np.ndarray, target_at: int, valid: np.ndarray, grad: np.ndarray, grad_at: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return a row's quantile Huber loss, the distance of the means and its value; write the gradient as above.

    `valid` holds ones, and zeros where the target is padding.
    """
    count, zero, one, half = head.outputs, spread(0.0), spread(1.0), spread(0.5)
    each = np.float32(1.0) / np.float32(count)
    losses, targets, values = np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for index in range(count):
        quantile = trace[element(at, rows, row, action * count + index)]
        values += quantile
        targets += target[target_at + index]
        fraction = (np.float32(index) + np.float32(0.5)) * each
        over, under = spread(fraction), spread(np.float32(1.0) - fraction)
        predicted, loss, slope = spread(quantile), zero, zero
        for column in range(0, padded(count), LANES):
            error = load(target, target_at + column) - predicted
            size = where_above(zero, error, zero - error, error)
            inside = where_above(size, one, one, size)
            weight = where_above(zero, error, under, over) * load(valid, column)
            loss = loss + weight * inside * (size - half * inside)
            slope = slope + weight * where_above(zero, error, inside, zero - inside)
        losses += total(loss)
        grad[grad_at + index] = total(slope) * each * scale
    return losses * each, abs(values - targets) * each, values * each
