"""Networks' outputs that need exponentials: the scalar that logits stand for, and a recurrent cell's step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, at_least, load, spread, store, tanh_parts, total, where_above
from rl_training.kernels.compiled.planning.exponentials import ascending, exponentials, highest
from rl_training.kernels.search.perceptron_layout import TILE
from rl_training.search.compilation import part


@part()
def expectation(values: np.ndarray, start: int, width: int) -> float:
    """Return the scalar that `width` logits over the integers -S..S stand for: their mean, then the inverse transform.

    The array goes on behind the logits up to a multiple of TILE.
    """
    behind = start + width - width % TILE  # where whole tiles end
    place0, step = ascending() - spread(np.float32(width // 2)), spread(np.float32(TILE))
    place1 = place0 + spread(np.float32(LANES))
    last0, last1 = _last_logits(values, behind, width % TILE)
    top0, top1 = last0, last1
    for index in range(start, behind, TILE):
        top0 = at_least(top0, load(values, index))
        top1 = at_least(top1, load(values, index + LANES))
    top = spread(highest(at_least(top0, top1)))
    total0 = total1 = weighted0 = weighted1 = spread(np.float32(0.0))
    for index in range(start, behind, TILE):
        weight0, weight1 = exponentials(load(values, index) - top), exponentials(load(values, index + LANES) - top)
        total0, total1 = total0 + weight0, total1 + weight1
        weighted0, weighted1 = weight0 * place0 + weighted0, weight1 * place1 + weighted1
        place0, place1 = place0 + step, place1 + step
    weight0, weight1 = exponentials(last0 - top), exponentials(last1 - top)
    total0, total1 = total0 + weight0, total1 + weight1
    weighted0, weighted1 = weight0 * place0 + weighted0, weight1 * place1 + weighted1
    mean = total(weighted0 + weighted1) / total(total0 + total1)
    # The inverse of sign(x)(sqrt(|x|+1)-1) + 0.001x, in the form that subtracts no nearly equal numbers.
    shifted = abs(mean) + 1.001
    root = 2.0 * shifted / (math.sqrt(1.0 + 0.004 * shifted) + 1.0)
    return math.copysign(root * root - 1.0, mean)


@part()
def _last_logits(values: np.ndarray, index: int, count: int) -> Any:
    """Return a tile of which the first `count` numbers are logits, and minus infinity for the others."""
    never, number, limit = spread(np.float32(-np.inf)), ascending(), spread(np.float32(count))
    first = where_above(limit, number, load(values, index), never)
    second = where_above(limit, number + spread(np.float32(LANES)), load(values, index + LANES), never)
    return first, second


@part()
def step_cell(
    values: np.ndarray, ours: int, theirs: int, memory: int, output_to: int, memory_to: int, stride: int
) -> None:
    """Make one step of an LSTM cell, whose parts are `stride` numbers wide.

    Its four gates are the sums of those at `ours` and `theirs`; the memory before the step stands at `memory`, output
    and memory after it are written to `output_to` and `memory_to`.
    """
    half, one = spread(np.float32(0.5)), spread(np.float32(1.0))
    for index in range(0, stride, LANES):
        first, second = ours + stride + index, theirs + stride + index
        # A logistic function is 1/2 + tanh(x/2)/2, and a product of two quotients needs but one division.
        enter, under_enter = tanh_parts(half * (load(values, ours + index) + load(values, theirs + index)))
        keep, under_keep = tanh_parts(half * (load(values, first) + load(values, second)))
        new, under_new = tanh_parts(load(values, first + stride) + load(values, second + stride))
        show, under_show = tanh_parts(half * (load(values, first + 2 * stride) + load(values, second + 2 * stride)))
        kept = half * (keep / under_keep + one) * load(values, memory + index)
        kept = kept + half * (enter + under_enter) * new / (under_enter * under_new)
        told, under_told = tanh_parts(kept)
        store(values, output_to + index, half * (show + under_show) * told / (under_show * under_told))
        store(values, memory_to + index, kept)
