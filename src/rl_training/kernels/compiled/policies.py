"""Distributions over actions, row by row: log-probabilities, entropies and their gradients.

Outputs of a policy lie in blocks [rows, outputs]; `element` returns the index of one of them. An action is a row of
float32 numbers: the choices of a categorical policy, the switches of a Bernoulli one, or the numbers of a Gaussian one.
The outputs of illegal choices are constants, so that they get no gradient.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.kernels.compiled.lanes import LANES
from rl_training.models.distributions import ILLEGAL, LOG_SQRT_2PI
from rl_training.search.compilation import part

CATEGORICAL, GAUSSIAN, BERNOULLI = 0, 1, 2


@part()
def element(at: int, rows: int, row: int, column: int) -> int:
    """Return the index of an element of a matrix in blocks."""
    return at + column // LANES * rows * LANES + row * LANES + column % LANES


@part()
def mask_outputs(outputs: np.ndarray, at: int, rows: int, row: int, mask: np.ndarray, first: int, count: int) -> None:
    """Give illegal choices no probability; an empty mask allows all."""
    if len(mask):
        for choice in range(count):
            if mask[first + choice] == 0:
                outputs[element(at, rows, row, choice)] = np.float32(ILLEGAL)


@part()
def categorical(
    outputs: np.ndarray,
    at: int,
    rows: int,
    row: int,
    choices: np.ndarray,
    action: np.ndarray,
    action_at: int,
    probabilities: np.ndarray,
    to: int,
) -> tuple[Any, Any]:
    """Turn logits into log-probabilities, in place, and return those of the action and the entropy.

    The probabilities are written as well, for `categorical_gradient`: exponentials take longer than all the rest.
    """
    log_prob, entropy, first = np.float32(0.0), np.float32(0.0), 0
    for variable in range(len(choices)):
        count = choices[variable]
        largest = outputs[element(at, rows, row, first)]
        for choice in range(first + 1, first + count):
            largest = max(largest, outputs[element(at, rows, row, choice)])
        normalizer = np.float32(0.0)
        for choice in range(first, first + count):
            p = math.exp(outputs[element(at, rows, row, choice)] - largest)
            probabilities[element(to, rows, row, choice)] = p
            normalizer += p
        log_normalizer, scale = np.float32(math.log(normalizer)), np.float32(1.0) / normalizer
        for choice in range(first, first + count):
            place = element(at, rows, row, choice)
            log_p = (outputs[place] - largest) - log_normalizer  # in this order: illegal choices are large numbers
            p = probabilities[element(to, rows, row, choice)] * scale
            outputs[place] = log_p
            probabilities[element(to, rows, row, choice)] = p
            entropy -= p * log_p
        log_prob += outputs[element(at, rows, row, first + int(action[action_at + variable]))]
        first += count
    return log_prob, entropy


@part()
def categorical_gradient(
    outputs: np.ndarray,
    at: int,
    rows: int,
    row: int,
    choices: np.ndarray,
    action: np.ndarray,
    action_at: int,
    mask: np.ndarray,
    mask_at: int,
    grad_log_prob: float,
    grad_entropy: float,
    grad: np.ndarray,
    grad_at: int,
) -> None:
    """Replace the probabilities that `categorical` wrote to `grad` by the gradient with respect to logits."""
    first = 0
    for variable in range(len(choices)):
        count = choices[variable]
        negative_entropy = np.float32(0.0)
        for choice in range(first, first + count):
            negative_entropy += grad[element(grad_at, rows, row, choice)] * outputs[element(at, rows, row, choice)]
        for choice in range(first, first + count):
            log_p, p = outputs[element(at, rows, row, choice)], grad[element(grad_at, rows, row, choice)]
            gradient = -grad_log_prob * p - grad_entropy * p * (log_p - negative_entropy)
            if choice == first + int(action[action_at + variable]):
                gradient += grad_log_prob
            if len(mask) and mask[mask_at + choice] == 0:
                gradient = 0.0
            grad[element(grad_at, rows, row, choice)] = np.float32(gradient)
        first += count


@part()
def gaussian(
    outputs: np.ndarray, at: int, rows: int, row: int, size: int, log_std: np.ndarray, std_at: int,
    action: np.ndarray, action_at: int,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the log-density of an action and the entropy."""
    log_prob, entropy = np.float32(0.0), np.float32(0.0)
    for index in range(size):
        spread = log_std[std_at + index]
        standard = (action[action_at + index] - outputs[element(at, rows, row, index)]) * math.exp(-spread)
        log_prob -= np.float32(0.5) * standard * standard + spread + np.float32(LOG_SQRT_2PI)
        entropy += spread + np.float32(0.5 + LOG_SQRT_2PI)
    return log_prob, entropy


@part()
def gaussian_gradient(
    outputs: np.ndarray,
    at: int,
    rows: int,
    row: int,
    size: int,
    log_std: np.ndarray,
    std_at: int,
    action: np.ndarray,
    action_at: int,
    grad_log_prob: float,
    grad_entropy: float,
    grad: np.ndarray,
    grad_at: int,
    grad_std: np.ndarray,
    grad_std_at: int,
) -> None:
    """Write the gradient with respect to the means and add that with respect to the log standard deviations."""
    for index in range(size):
        inverse = math.exp(-log_std[std_at + index])
        standard = (action[action_at + index] - outputs[element(at, rows, row, index)]) * inverse
        grad[element(grad_at, rows, row, index)] = np.float32(grad_log_prob * standard * inverse)
        grad_std[grad_std_at + index] += np.float32(grad_log_prob * (standard * standard - 1.0) + grad_entropy)


@part()
def bernoulli(
    outputs: np.ndarray, at: int, rows: int, row: int, size: int, action: np.ndarray, action_at: int
) -> tuple[Any, Any]:
    """Return the log-probability of switches and the entropy."""
    log_prob, entropy = np.float32(0.0), np.float32(0.0)
    for index in range(size):
        logit = outputs[element(at, rows, row, index)]
        p, softplus = switch(logit)
        log_prob += action[action_at + index] * logit - softplus
        entropy += softplus - p * logit
    return log_prob, entropy


@part()
def switch(logit: float) -> tuple[Any, Any]:
    """Return the probability of a switch and log(1 + exp(logit)), without overflow."""
    small = math.exp(-abs(logit))
    p = 1.0 / (1.0 + small) if logit >= 0 else small / (1.0 + small)
    return np.float32(p), np.float32(max(logit, 0.0) + math.log1p(small))


@part()
def bernoulli_gradient(
    outputs: np.ndarray,
    at: int,
    rows: int,
    row: int,
    size: int,
    action: np.ndarray,
    action_at: int,
    mask: np.ndarray,
    mask_at: int,
    grad_log_prob: float,
    grad_entropy: float,
    grad: np.ndarray,
    grad_at: int,
) -> None:
    """Write the gradient with respect to logits."""
    for index in range(size):
        logit = outputs[element(at, rows, row, index)]
        p, _ = switch(logit)
        gradient = grad_log_prob * (action[action_at + index] - p) - grad_entropy * logit * p * (1.0 - p)
        if len(mask) and mask[mask_at + index] == 0:
            gradient = 0.0
        grad[element(grad_at, rows, row, index)] = np.float32(gradient)


@part()
def sample(
    outputs: np.ndarray,
    rows: int,
    width: int,
    policy: int,
    choices: np.ndarray,
    log_std: np.ndarray,
    std_at: int,
    noise: np.ndarray,
    mask: np.ndarray,
    choice: np.ndarray,
    action: np.ndarray,
) -> None:
    """Draw actions for outputs [rows * width] from noise of the same size, as `models.distributions` do.

    Choices and switches are written to `choice`, the actions of a Gaussian policy to `action`.
    """
    for row in range(rows):
        at = row * width
        if policy == CATEGORICAL:
            first = 0
            for variable in range(len(choices)):
                end = first + choices[variable]
                choice[row * len(choices) + variable] = race(outputs, noise, mask, at + first, at + end)
                first = end
        elif policy == BERNOULLI:
            for index in range(at, at + width):
                logit = np.float32(ILLEGAL) if len(mask) and mask[index] == 0 else outputs[index]
                choice[index] = noise[index] < switch(logit)[0]
        else:
            for index in range(width):
                spread = math.exp(log_std[std_at + index])
                action[at + index] = outputs[at + index] + spread * noise[at + index]


@part()
def race(logits: np.ndarray, noise: np.ndarray, mask: np.ndarray, first: int, end: int) -> int:
    """Return the choice, counted from `first`, with the largest quotient of probability and exponential noise."""
    largest = np.float32(ILLEGAL)
    for index in range(first, end):
        if len(mask) == 0 or mask[index]:
            largest = max(largest, logits[index])
    winner, best = 0, -1.0
    for index in range(first, end):
        logit = np.float32(ILLEGAL) if len(mask) and mask[index] == 0 else logits[index]
        quotient = math.exp(logit - largest) / noise[index]
        if quotient > best:
            winner, best = index - first, quotient
    return winner
