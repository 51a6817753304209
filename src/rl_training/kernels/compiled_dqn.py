"""The gradient of plain deep Q-learning in compiled code, for small networks on the CPU.

An update of two layers of 64 units is a few microseconds of arithmetic; as a row of tensor operations it takes ten
times as long. Matrices lie in one flat array of scratch memory, their rows padded by zeros to whole lanes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from rl_training.data.replay import ReplayBatch
from rl_training.kernels.compiled.lanes import LANES, load, multiply_add, number, store
from rl_training.search.compilation import compiled, part

_NO_WEIGHT, _NO_MASK = np.empty(0, np.float32), np.empty((0, 0), np.bool_)


class CompiledGradient:
    """Computes what `dqn_loss` and autograd do, for perceptrons with ReLU whose weights are flat arrays."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        values: Tensor,
        target_values: Tensor,
        gradient: Tensor,
        *,
        double: bool,
        huber: bool,
    ) -> None:
        """`sizes` are the widths from input to output; a layer's weight [out, in] precedes its bias in the tensors."""
        self._networks = values.numpy(), target_values.numpy(), gradient.numpy()  # they share the tensors' memory
        self._sizes = np.array(sizes)
        self._options = double, huber
        widths = [size + -size % LANES for size in sizes]
        self._widest = max(widths)
        self._width = sum(widths) + 2 * self._widest  # of all layers and of two gradients, per transition
        # A layer's weight with its bias, either way round.
        self._packed = max((max(pair) + 1) * max(pair) for pair in pairwise(widths))
        self._scratch = np.empty(0, np.float32)

    def __call__(
        self, features: Tensor, next_features: Tensor, batch: ReplayBatch
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Write the gradient for features [B, inputs] and return what `dqn_loss` returns."""
        rows = len(features)
        needed = self._widest + self._packed + rows * self._width
        if len(self._scratch) != needed:
            self._scratch = np.zeros(needed, np.float32)
        errors, report = np.empty(rows, np.float32), np.empty(2, np.float32)
        value_gradient(
            *self._networks,
            self._sizes,
            features.reshape(-1).numpy(),
            next_features.reshape(-1).numpy(),
            batch.action.numpy(),
            batch.reward.numpy(),
            batch.discount.numpy(),
            _NO_WEIGHT if batch.weight is None else batch.weight.numpy(),
            _NO_MASK if batch.next_mask is None else batch.next_mask.numpy(),
            *self._options,
            self._scratch,
            errors,
            report,
        )
        loss, value = torch.from_numpy(report)
        return loss, None if batch.weight is None else torch.from_numpy(errors), value


@part()
def padded(width: int) -> int:
    """Return a row's length in scratch memory."""
    return (width + LANES - 1) // LANES * LANES


@part()
def pack(source: np.ndarray, row: int, step: int, rows: int, columns: int, scratch: np.ndarray, to: int) -> None:
    """Copy a matrix whose rows lie `row` and columns `step` numbers apart to rows padded by zeros."""
    width = padded(columns)
    for index in range(rows):
        given, packed = source[index * row :], scratch[to + index * width : to + (index + 1) * width]
        for column in range(columns):
            packed[column] = given[column * step]
        packed[columns:] = np.float32(0.0)


@part()
def eight_rows(
    scratch: np.ndarray, left: int, row: int, step: int, inner: int, right: int, width: int, start: int, to: int
) -> None:
    """Do what `product` does for eight rows and LANES columns: the sums stay in registers."""
    sum0 = sum1 = sum2 = sum3 = sum4 = sum5 = sum6 = sum7 = load(scratch, start)
    for k in range(inner):
        lanes, at = load(scratch, right + k * width), left + k * step
        sum0 = multiply_add(number(scratch, at), lanes, sum0)
        sum1 = multiply_add(number(scratch, at + row), lanes, sum1)
        sum2 = multiply_add(number(scratch, at + 2 * row), lanes, sum2)
        sum3 = multiply_add(number(scratch, at + 3 * row), lanes, sum3)
        sum4 = multiply_add(number(scratch, at + 4 * row), lanes, sum4)
        sum5 = multiply_add(number(scratch, at + 5 * row), lanes, sum5)
        sum6 = multiply_add(number(scratch, at + 6 * row), lanes, sum6)
        sum7 = multiply_add(number(scratch, at + 7 * row), lanes, sum7)
    store(scratch, to, sum0)
    store(scratch, to + width, sum1)
    store(scratch, to + 2 * width, sum2)
    store(scratch, to + 3 * width, sum3)
    store(scratch, to + 4 * width, sum4)
    store(scratch, to + 5 * width, sum5)
    store(scratch, to + 6 * width, sum6)
    store(scratch, to + 7 * width, sum7)


@part()
def product(
    scratch: np.ndarray,
    left: int,
    row: int,
    step: int,
    rows: int,
    inner: int,
    right: int,
    width: int,
    start: int,
    to: int,
) -> None:
    """Write left [rows, inner] times right [inner, width], plus the row at `start`, to [rows, width].

    The left matrix may lie either way round: its rows are `row` and its columns `step` numbers apart.
    """
    together = rows - rows % 8
    for column in range(0, width, LANES):
        for index in range(0, together, 8):
            at, target = left + index * row, to + index * width + column
            eight_rows(scratch, at, row, step, inner, right + column, width, start + column, target)
        for index in range(together, rows):
            total = load(scratch, start + column)
            for k in range(inner):
                factor = number(scratch, left + index * row + k * step)
                total = multiply_add(factor, load(scratch, right + k * width + column), total)
            store(scratch, to + index * width + column, total)


@part()
def forward(weights: np.ndarray, sizes: np.ndarray, rows: int, scratch: np.ndarray, packed: int, trace: int) -> int:
    """Write every layer's output behind the input [rows, padded] at `trace`; return where the last one begins."""
    offset, layers = 0, len(sizes) - 1
    for layer in range(layers):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        width, output = padded(outputs), trace + rows * padded(inputs)
        bias = packed + inputs * width
        pack(weights[offset:], 1, inputs, inputs, outputs, scratch, packed)
        pack(weights[offset + inputs * outputs :], 0, 1, 1, outputs, scratch, bias)
        product(scratch, trace, padded(inputs), 1, rows, inputs, packed, width, bias, output)
        if layer < layers - 1:
            hidden = scratch[output : output + rows * width]
            for index in range(len(hidden)):
                hidden[index] = np.float32(0.0) if hidden[index] < 0 else hidden[index]  # NaN stays what it is
        offset += (inputs + 1) * outputs
        trace = output
    return trace


@part()
def backward(
    weights: np.ndarray,
    gradient: np.ndarray,
    sizes: np.ndarray,
    rows: int,
    scratch: np.ndarray,
    packed: int,
    output: int,
    by_output: int,
    room: int,
) -> None:
    """Write the gradient of all weights, given that by the last output [rows, padded] and room of the same size.

    The scratch memory begins with a row of zeros.
    """
    offset, seen = len(weights), output
    for layer in range(len(sizes) - 2, -1, -1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        width, out_width = padded(inputs), padded(outputs)
        offset -= (inputs + 1) * outputs
        seen -= rows * width  # what the layer saw
        by_weight, by_bias = gradient[offset:], gradient[offset + inputs * outputs :]
        by_bias[:outputs] = np.float32(0.0)
        for row in range(rows):
            by_sum = scratch[by_output + row * out_width :]
            for index in range(outputs):
                by_bias[index] += by_sum[index]
        product(scratch, by_output, 1, out_width, outputs, rows, seen, width, 0, packed)
        for index in range(outputs):
            padded_row, row_of_weight = scratch[packed + index * width :], by_weight[index * inputs :]
            for column in range(inputs):
                row_of_weight[column] = padded_row[column]
        if layer:
            pack(weights[offset:], inputs, 1, outputs, inputs, scratch, packed)
            product(scratch, by_output, out_width, 1, rows, outputs, packed, width, 0, room)
            by_hidden, hidden = scratch[room : room + rows * width], scratch[seen : seen + rows * width]
            for index in range(len(hidden)):
                by_hidden[index] *= np.float32(hidden[index] > 0)
            by_output, room = room, by_output


@part()
def best(values: np.ndarray, mask: np.ndarray, row: int) -> int:
    """Return the first of the legal actions with the largest value, or one whose value is NaN."""
    chosen = -1
    for action in range(len(values)):
        if len(mask) == 0 or mask[row, action]:
            value = values[action]
            if chosen < 0 or value > values[chosen] or value != value:
                chosen = action
    return chosen


@compiled
def value_gradient(
    values: np.ndarray,
    target_values: np.ndarray,
    gradient: np.ndarray,
    sizes: np.ndarray,
    features: np.ndarray,
    next_features: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    discount: np.ndarray,
    weight: np.ndarray,
    next_mask: np.ndarray,
    double: bool,
    huber: bool,
    scratch: np.ndarray,
    errors: np.ndarray,
    report: np.ndarray,
) -> None:
    """Write the gradient of the temporal-difference loss, each transition's error, the loss and the mean value."""
    rows, inputs, actions = len(reward), sizes[0], sizes[-1]
    width, widest, layers = padded(actions), 0, 0
    for layer in range(len(sizes)):
        widest = max(widest, padded(sizes[layer]))
        layers += padded(sizes[layer])
    # Zeros, two gradients, the layers and a weight.
    by_output, room, trace = widest, (1 + rows) * widest, (1 + 2 * rows) * widest
    packed = trace + rows * layers

    pack(next_features, inputs, 1, rows, inputs, scratch, trace)
    if double:
        output = forward(values, sizes, rows, scratch, packed, trace)
        for row in range(rows):
            errors[row] = best(scratch[output + row * width :][:actions], next_mask, row)
    output = forward(target_values, sizes, rows, scratch, packed, trace)
    for row in range(rows):
        successor = scratch[output + row * width :][:actions]
        chosen = int(errors[row]) if double else best(successor, next_mask, row)
        errors[row] = -(reward[row] + discount[row] * successor[chosen])

    pack(features, inputs, 1, rows, inputs, scratch, trace)
    output = forward(values, sizes, rows, scratch, packed, trace)
    one, half, two = np.float32(1.0), np.float32(0.5), np.float32(2.0)
    loss, value = 0.0, 0.0
    scratch[by_output : by_output + rows * width] = np.float32(0.0)
    for row in range(rows):
        predicted = scratch[output + row * width + action[row]]
        error = predicted + errors[row]
        size = abs(error)
        counts = weight[row] if len(weight) else one
        if not huber:
            cost, slope = error * error, two * error
        elif size > one:
            cost, slope = size - half, one if error > 0 else -one
        else:
            cost, slope = half * error * error, error
        scratch[by_output + row * width + action[row]] = slope * counts / np.float32(rows)
        errors[row] = size
        loss += counts * cost
        value += predicted
    report[0], report[1] = loss / rows, value / rows
    backward(values, gradient, sizes, rows, scratch, packed, output, by_output, room)
