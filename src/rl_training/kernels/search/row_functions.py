"""What happens to a row of a layer's outputs, in place: sums, activations, normalisations. Rows begin at `start`."""

from __future__ import annotations

import math

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, at_least, at_most, load, relu, spread, store, total
from rl_training.kernels.compiled.planning.exponentials import exponential, highest
from rl_training.kernels.search.perceptron_layout import ELU, GELU, RELU, SILU, TANH
from rl_training.search.compilation import part

# Sums may be taken in any order; infinities and NaN keep their meaning.
ANY_ORDER = {"reassoc", "contract", "nsz"}


@part()
def add_row(values: np.ndarray, start: int, others: np.ndarray, at: int, width: int) -> None:
    """Add the row that stands at `at`; what stands behind the rows up to a multiple of LANES is added as well."""
    for index in range(0, width, LANES):
        store(values, start + index, load(values, start + index) + load(others, at + index))


@part(fastmath=ANY_ORDER)
def activate(values: np.ndarray, start: int, width: int, activation: int) -> None:
    """Apply an activation."""
    one, half = np.float32(1.0), np.float32(0.5)
    row = values[start : start + width]
    if activation == RELU:
        zero = spread(np.float32(0.0))
        for index in range(start, start + width, LANES):
            # Adding zero changes nothing but the instructions: storing only where a number changes is slow.
            store(values, index, relu(load(values, index) + zero))
    elif activation == TANH:
        for index in range(width):
            row[index] = one - np.float32(2.0) / (exponential(np.float32(2.0) * row[index]) + one)
    elif activation == ELU:
        for index in range(width):
            x = row[index]
            row[index] = x if x > 0 else exponential(x) - one
    elif activation == SILU:
        for index in range(width):
            row[index] = row[index] / (one + exponential(-row[index]))
    elif activation == GELU:
        for index in range(width):
            row[index] = row[index] * half * (one + np.float32(math.erf(row[index] * math.sqrt(0.5))))


@part()
def normalize(values: np.ndarray, start: int, width: int, weights: np.ndarray, gain: int, shift: int) -> None:
    """Apply a layer normalisation, whose gain and shift [width] stand among the weights."""
    whole = width - width % LANES
    sums, squares = spread(np.float32(0.0)), spread(np.float32(0.0))
    for index in range(start, start + whole, LANES):
        sums = sums + load(values, index)
    mean = total(sums)
    for index in range(start + whole, start + width):
        mean += values[index]
    mean /= np.float32(width)
    for index in range(start, start + whole, LANES):
        apart = load(values, index) - spread(mean)
        squares = apart * apart + squares
    variance = total(squares)
    for index in range(start + whole, start + width):
        variance += (values[index] - mean) * (values[index] - mean)
    scale = np.float32(1.0 / math.sqrt(variance / width + 1e-5))
    for index in range(0, whole, LANES):
        normed = (load(values, start + index) - spread(mean)) * spread(scale)
        store(values, start + index, normed * load(weights, gain + index) + load(weights, shift + index))
    for index in range(whole, width):
        values[start + index] = (values[start + index] - mean) * scale * weights[gain + index] + weights[shift + index]


@part()
def rescale(values: np.ndarray, start: int, width: int) -> None:
    """Scale to [0, 1] by the smallest and the largest."""
    whole = width - width % LANES
    low = high = values[start]
    if whole > 0:
        lows = highs = load(values, start)
        for index in range(start + LANES, start + whole, LANES):
            lanes = load(values, index)
            lows, highs = at_most(lows, lanes), at_least(highs, lanes)
        low, high = -highest(spread(np.float32(0.0)) - lows), highest(highs)
    for index in range(start + whole, start + width):
        low, high = min(low, values[index]), max(high, values[index])
    span = max(high - low, np.float32(1e-5))
    for index in range(start, start + whole, LANES):
        store(values, index, (load(values, index) - spread(low)) / spread(span))
    for index in range(start + whole, start + width):
        values[index] = (values[index] - low) / span
