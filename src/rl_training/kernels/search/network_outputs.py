"""Networks' outputs that need exponentials: the scalar that logits stand for, and a recurrent cell's step."""

from __future__ import annotations

import math

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, spread, store, tanh, total, where_above
from rl_training.kernels.compiled.planning.exponentials import ascending, exponentials, highest, sigmoid
from rl_training.kernels.search.perceptron_layout import TILE
from rl_training.search.compilation import part


@part()
def expectation(values: np.ndarray, start: int, width: int) -> float:
    """Return the scalar that `width` logits over the integers -S..S stand for: their mean, then the inverse transform.

    What stands behind the logits up to a multiple of TILE is overwritten.
    """
    end = start + (width + TILE - 1) // TILE * TILE
    for index in range(start + width, end):
        values[index] = -np.inf
    top0 = top1 = spread(np.float32(-np.inf))
    for index in range(start, end, TILE):
        logits0, logits1 = load(values, index), load(values, index + LANES)
        top0, top1 = where_above(logits0, top0, logits0, top0), where_above(logits1, top1, logits1, top1)
    top = spread(highest(where_above(top0, top1, top0, top1)))
    total0 = total1 = weighted0 = weighted1 = spread(np.float32(0.0))
    place0 = ascending() - spread(np.float32(width // 2))
    place1 = place0 + spread(np.float32(LANES))
    for index in range(start, end, TILE):
        weight0 = exponentials(load(values, index) - top)
        weight1 = exponentials(load(values, index + LANES) - top)
        total0, total1 = total0 + weight0, total1 + weight1
        weighted0, weighted1 = weight0 * place0 + weighted0, weight1 * place1 + weighted1
        place0, place1 = place0 + spread(np.float32(TILE)), place1 + spread(np.float32(TILE))
    mean = total(weighted0 + weighted1) / total(total0 + total1)
    # The inverse of sign(x)(sqrt(|x|+1)-1) + 0.001x, in the form that subtracts no nearly equal numbers.
    shifted = abs(mean) + 1.001
    root = 2.0 * shifted / (math.sqrt(1.0 + 0.004 * shifted) + 1.0)
    return math.copysign(root * root - 1.0, mean)


@part()
def step_cell(
    values: np.ndarray, ours: int, theirs: int, memory: int, output_to: int, memory_to: int, stride: int
) -> None:
    """Make one step of an LSTM cell, whose parts are `stride` numbers wide.

    Its four gates are the sums of those at `ours` and `theirs`; the memory before the step stands at `memory`, output
    and memory after it are written to `output_to` and `memory_to`.
    """
    for index in range(0, stride, LANES):
        enter = sigmoid(load(values, ours + index) + load(values, theirs + index))
        first, second = ours + stride + index, theirs + stride + index
        keep = sigmoid(load(values, first) + load(values, second))
        new = tanh(load(values, first + stride) + load(values, second + stride))
        show = sigmoid(load(values, first + 2 * stride) + load(values, second + 2 * stride))
        kept = keep * load(values, memory + index) + enter * new
        store(values, output_to + index, show * tanh(kept))
        store(values, memory_to + index, kept)
