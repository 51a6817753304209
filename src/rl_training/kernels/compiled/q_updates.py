"""Deep Q-learning in compiled code: a whole gradient step in one call, and greedy actions, for perceptrons on the CPU.

Computes the same as `algorithms.dqn.DQN.improve`. Networks are packed into blocks at every call; statistics of the
optimizer stay as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import fill, gather, padded
from rl_training.kernels.compiled.lanes import LANES
from rl_training.kernels.compiled.perceptrons import (
    backward,
    forward,
    pack_layers,
    pack_transposed_layers,
    unpack_layers,
)
from rl_training.kernels.compiled.policies import element
from rl_training.kernels.compiled.q_values import (
    CATEGORICAL,
    QUANTILE,
    Head,
    best_action,
    categorical_loss,
    combine_streams,
    number_loss,
    quantile_loss,
    write_target,
)
from rl_training.kernels.compiled.steps import adam, clip_factor, norm
from rl_training.search.compilation import compiled, part

ADVANTAGE, VALUE = 0, 1
JUDGE, TARGET, ONLINE = 0, 1, 2  # passes of a batch: who chooses the successor's action, who values it, who learns
LOSS, PREDICTED, NORM, REPORT = range(4)


class Streams(NamedTuple):
    """The network: one stream, or with dueling the advantages' and the value's, in this order."""

    sizes: np.ndarray  # [streams, layers + 1] widths from input to output
    places: np.ndarray  # [streams, layers, 4], as `pack_layers` takes them
    ends: np.ndarray  # [streams] where their packed weights end
    transposed_ends: np.ndarray  # [streams] where their transposed weights end
    activation: int


class Memory(NamedTuple):
    """What a call works in: packed weights and gradient, and the passes of `chunk` rows."""

    values: np.ndarray
    target: np.ndarray
    gradient: np.ndarray
    transposed: np.ndarray
    trace: np.ndarray  # one region for each stream
    stride: int  # where the second region begins
    grad: np.ndarray  # sixteen zeros, then two regions
    other: int  # where the second region begins
    choice: np.ndarray  # [chunk] the successors' actions
    action_values: np.ndarray  # [actions] of one successor
    wanted: np.ndarray  # [chunk * padded outputs] what the taken actions' outputs should have been
    taken: np.ndarray  # [chunk * padded outputs] gradient with respect to the taken actions' outputs
    valid: np.ndarray  # [padded outputs] ones, then zeros
    chunk: int


class Batch(NamedTuple):
    """Transitions in flat arrays."""

    features: np.ndarray  # [B * inputs]
    next_features: np.ndarray  # [B * inputs]
    action: np.ndarray  # [B] int64
    reward: np.ndarray  # [B]
    discount: np.ndarray  # [B]
    weight: np.ndarray  # [B], or empty
    next_mask: np.ndarray  # [B * actions] uint8, or empty


class Settings(NamedTuple):
    """The numbers of the target and of the optimizer."""

    double: bool
    max_grad_norm: float  # negative for none
    beta1: float
    eps: float


@part()
def pass_rows(
    streams: Streams,
    memory: Memory,
    head: Head,
    weights: np.ndarray,
    features: np.ndarray,
    indices: np.ndarray,
    first: int,
    rows: int,
) -> int:
    """Return where the outputs [rows, actions * outputs] of rows from `first` on begin; `indices` is empty."""
    at, output = 0, 0
    for stream in range(len(streams.sizes)):
        sizes, base = streams.sizes[stream], stream * memory.stride
        gather(features, sizes[0], indices, first, rows, memory.trace, base)
        output = forward(weights, at, sizes, streams.activation, rows, memory.trace, base)
        at = streams.ends[stream]
    if len(streams.sizes) > 1:
        combine_streams(memory.trace, output - memory.stride, output, rows, head)
        output -= memory.stride  # both streams have the same hidden layers
    return output


@part()
def row_loss(
    memory: Memory, head: Head, output: int, rows: int, row: int, action: int, scale: float
) -> tuple[float, float, float]:
    """Return loss, error and value of a row; write the gradient with respect to the taken action's outputs."""
    at = row * padded(head.outputs)
    if head.kind == CATEGORICAL:
        return categorical_loss(
            memory.trace, output, rows, row, action, head, scale, memory.wanted, at, memory.taken, at
        )
    if head.kind == QUANTILE:
        return quantile_loss(
            memory.trace, output, rows, row, action, head, scale, memory.wanted, at, memory.valid, memory.taken, at
        )
    return number_loss(memory.trace, output, rows, row, action, head, scale, memory.wanted[at], memory.taken, at)


@part()
def stream_gradient(
    streams: Streams, memory: Memory, head: Head, batch: Batch, stream: int, first: int, rows: int
) -> None:
    """Write the gradient with respect to a stream's outputs, given that of the taken actions' outputs."""
    fill(memory.grad, LANES, rows * padded(streams.sizes[stream, -1]), 0.0)
    for row in range(rows):
        action = batch.action[first + row]
        for output in range(head.outputs):
            gradient = memory.taken[row * padded(head.outputs) + output]
            if stream == VALUE:
                memory.grad[element(LANES, rows, row, output)] = gradient
                continue
            if len(streams.sizes) > 1:  # advantages count by their distance to the mean
                share = gradient / np.float32(head.actions)
                for other in range(head.actions):
                    memory.grad[element(LANES, rows, row, other * head.outputs + output)] = -share
            memory.grad[element(LANES, rows, row, action * head.outputs + output)] += gradient


@part()
def batch_gradient(
    streams: Streams,
    memory: Memory,
    head: Head,
    batch: Batch,
    double: bool,
    indices: np.ndarray,
    errors: np.ndarray,
    report: np.ndarray,
) -> None:
    """Overwrite the packed gradient by that of the loss; write each transition's error, the loss and the mean value."""
    count, actions, width = len(batch.reward), head.actions, padded(head.outputs)
    fill(memory.gradient, 0, len(memory.gradient), 0.0)
    loss, value = 0.0, 0.0
    for first in range(0, count, memory.chunk):
        rows = min(count - first, memory.chunk)
        output = 0
        for turn in range(JUDGE if double else TARGET, ONLINE + 1):
            weights = memory.target if turn == TARGET else memory.values
            features = batch.features if turn == ONLINE else batch.next_features
            output = pass_rows(streams, memory, head, weights, features, indices, first, rows)
            for row in range(rows):
                index = first + row
                if turn == ONLINE:
                    importance = batch.weight[index] if len(batch.weight) else np.float32(1.0)
                    scale = importance / np.float32(count)
                    cost, errors[index], predicted = row_loss(
                        memory, head, output, rows, row, batch.action[index], scale
                    )
                    loss += cost * importance
                    value += predicted
                    continue
                if turn == JUDGE or not double:
                    memory.choice[row] = best_action(
                        memory.trace, output, rows, row, head, batch.next_mask, index * actions,
                        memory.action_values, 0,
                    )  # fmt: skip
                if turn == TARGET:
                    write_target(
                        memory.trace, output, rows, row, memory.choice[row], head, batch.reward[index],
                        batch.discount[index], memory.wanted, row * width,
                    )  # fmt: skip
        for stream in range(len(streams.sizes)):
            stream_gradient(streams, memory, head, batch, stream, first, rows)
            backward(
                memory.transposed, streams.transposed_ends[stream], memory.gradient, streams.ends[stream],
                streams.sizes[stream], streams.activation, rows, memory.trace, output + stream * memory.stride,
                memory.grad, LANES, memory.other,
            )  # fmt: skip
    report[LOSS], report[PREDICTED] = loss / count, value / count


@compiled
def q_update(
    flat: np.ndarray,
    target: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    gradient: np.ndarray,
    streams: Streams,
    memory: Memory,
    head: Head,
    batch: Batch,
    settings: Settings,
    indices: np.ndarray,
    learning_rate: float,
    step: int,
    errors: np.ndarray,
    report: np.ndarray,
) -> None:
    """Write the gradient of a batch's loss and take the given step, counted from 1, along it; 0 takes none."""
    for network in range(2):
        at = 0
        for stream in range(len(streams.sizes)):
            source, packed = (target, memory.target) if network else (flat, memory.values)
            at = pack_layers(source, streams.places[stream], streams.sizes[stream], packed, at)
    at = 0
    for stream in range(len(streams.sizes)):
        pack_transposed_layers(flat, streams.places[stream], streams.sizes[stream], memory.transposed, at)
        at = streams.transposed_ends[stream]
    batch_gradient(streams, memory, head, batch, settings.double, indices, errors, report)
    at = 0
    for stream in range(len(streams.sizes)):
        at = unpack_layers(memory.gradient, at, streams.places[stream], streams.sizes[stream], gradient)
    report[NORM] = norm(memory.gradient, 0, len(memory.gradient))
    if step:
        factor = clip_factor(report[NORM], settings.max_grad_norm)
        adam(flat, mean, square, gradient, len(flat), factor, step, learning_rate, settings.beta1, settings.eps)


@part()
def best_actions(
    streams: Streams,
    memory: Memory,
    head: Head,
    features: np.ndarray,
    indices: np.ndarray,
    mask: np.ndarray,
    values: np.ndarray,
    action: np.ndarray,
) -> None:
    """Write the values [N * actions] of features [N * inputs] by the packed weights, and the best legal actions [N]."""
    for first in range(0, len(action), memory.chunk):
        rows = min(len(action) - first, memory.chunk)
        output = pass_rows(streams, memory, head, memory.values, features, indices, first, rows)
        for row in range(rows):
            at = (first + row) * head.actions
            action[first + row] = best_action(memory.trace, output, rows, row, head, mask, at, values, at)


@compiled
def greedy_actions(
    flat: np.ndarray,
    streams: Streams,
    memory: Memory,
    head: Head,
    features: np.ndarray,
    indices: np.ndarray,
    mask: np.ndarray,
    values: np.ndarray,
    action: np.ndarray,
    chance: np.ndarray,
    epsilon: float,
) -> bool:
    """Do what `best_actions` does by the weights of a flat array; return whether a chance lies below epsilon.

    `indices` is empty.
    """
    at = 0
    for stream in range(len(streams.sizes)):
        at = pack_layers(flat, streams.places[stream], streams.sizes[stream], memory.values, at)
    best_actions(streams, memory, head, features, indices, mask, values, action)
    explores = False
    for index in range(len(chance)):
        explores |= chance[index] < np.float32(epsilon)
    return explores
