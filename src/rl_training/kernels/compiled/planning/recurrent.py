"""A recurrent (LSTM) cell over K steps of a batch, forward and backward.

Step k's rows are those from k * rows on, for k from 1 to K. The cell starts empty, and again after every `horizon`
steps. A region of the four gates is 4 * size wide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, spread, store, tanh
from rl_training.kernels.compiled.planning.affine import add_product, input_gradient, weight_gradient
from rl_training.kernels.compiled.planning.exponentials import sigmoid
from rl_training.search.compilation import part


@part()
def starts_empty(step: int, horizon: int) -> bool:
    """Return whether the cell is empty before a step, counted from 1."""
    return (step - 1) % horizon == 0


@part()
def run_cell(
    layer: Any, values: np.ndarray, trace: np.ndarray, rows: int, steps: int, horizon: int, gates: int, memory: int,
    shown: int, output: int,
) -> None:  # fmt: skip
    """Write memory, its tanh (`shown`) and output of all steps; `gates` holds those of the inputs and is activated.

    `layer` is that of the gates of the cell's output.
    """
    total, size = (steps + 1) * rows, layer.inputs
    panel, gate = total * LANES, total * size
    for step in range(1, steps + 1):
        empty = starts_empty(step, horizon)
        if not empty:
            add_product(layer, values, trace, total, output, (step - 1) * rows, gates, step * rows, rows)
        for block in range(size // LANES):
            for row in range(step * rows, (step + 1) * rows):
                place = block * panel + row * LANES
                enter, keep = sigmoid(load(trace, gates + place)), sigmoid(load(trace, gates + gate + place))
                new = tanh(load(trace, gates + 2 * gate + place))
                show = sigmoid(load(trace, gates + 3 * gate + place))
                kept = enter * new
                if not empty:
                    kept = keep * load(trace, memory + place - rows * LANES) + kept
                bounded = tanh(kept)
                store(trace, gates + place, enter)
                store(trace, gates + gate + place, keep)
                store(trace, gates + 2 * gate + place, new)
                store(trace, gates + 3 * gate + place, show)
                store(trace, memory + place, kept)
                store(trace, shown + place, bounded)
                store(trace, output + place, show * bounded)


@part()
def cell_backward(
    layer: Any, transposed: np.ndarray, gradient: np.ndarray, trace: np.ndarray, grad: np.ndarray, rows: int,
    steps: int, horizon: int, gates: int, memory: int, shown: int, output: int,
) -> None:  # fmt: skip
    """Write the gradient with respect to the gates, given that with respect to the outputs; add that of the layer."""
    total, size = (steps + 1) * rows, layer.inputs
    panel, gate, one = total * LANES, total * size, spread(1.0)
    for step in range(steps, 0, -1):
        empty, last = starts_empty(step, horizon), step == steps or starts_empty(step + 1, horizon)
        for block in range(size // LANES):
            for row in range(step * rows, (step + 1) * rows):
                place = block * panel + row * LANES
                enter, keep = load(trace, gates + place), load(trace, gates + gate + place)
                new, show = load(trace, gates + 2 * gate + place), load(trace, gates + 3 * gate + place)
                bounded, given = load(trace, shown + place), load(grad, output + place)
                grad_memory = given * show * (one - bounded * bounded)
                if not last:
                    grad_memory = grad_memory + load(grad, memory + place)
                store(grad, gates + place, grad_memory * new * enter * (one - enter))
                store(grad, gates + 2 * gate + place, grad_memory * enter * (one - new * new))
                store(grad, gates + 3 * gate + place, given * bounded * show * (one - show))
                grad_keep = spread(0.0)
                if not empty:
                    before = place - rows * LANES
                    grad_keep = grad_memory * load(trace, memory + before) * keep * (one - keep)
                    store(grad, memory + before, grad_memory * keep)
                store(grad, gates + gate + place, grad_keep)
        if not empty:
            input_gradient(layer, transposed, grad, total, gates, step * rows, output, (step - 1) * rows, rows, True)
    for first in range(1, steps, horizon):
        later = min(first + horizon - 1, steps) - first  # steps that begin with an output of the cell
        weight_gradient(
            layer, gradient, trace, grad, total, output, first * rows, gates, (first + 1) * rows, later * rows
        )
