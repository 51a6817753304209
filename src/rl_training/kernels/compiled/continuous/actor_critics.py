"""What updates of actors and critics for continuous actions have in common.

Threads share an update by rows of the batch: each part has rows, memory and a partial gradient of its own. What every
part has written is read by others only in a later phase, after a barrier.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import padded
from rl_training.kernels.compiled.continuous.stacks import (
    Stack,
    hidden_backward,
    hidden_forward,
    hidden_width,
    input_gradient,
    put_columns,
)
from rl_training.kernels.compiled.heads import head_backward, head_forward, head_gradient, pack_head
from rl_training.kernels.compiled.lanes import LANES
from rl_training.kernels.compiled.layers import Scratch
from rl_training.kernels.compiled.steps import adam_range, add_up, clip_factor, polyak
from rl_training.search.compilation import part

CRITIC_GRADIENT, CRITIC_SUM, CRITIC_STEP, ACTOR_GRADIENT, ACTOR_SUM, ACTOR_STEP = range(6)
LOSS_CRITIC, VALUE, LOSS_ACTOR, LOG_PROB, CRITIC_SQUARES, ACTOR_SQUARES, TEMPERATURE, REPORT = range(8)
_AT_ONCE = 2048  # numbers that the optimizer's step and the target network's pass together, in the nearest cache


class Phases(NamedTuple):
    """What is done of an update, and where its parts wait for each other."""

    first: int
    end: int
    barriers: int  # a bit for each phase after which all parts wait for each other
    arrived: np.ndarray  # [1] as `kernels.compiled.barrier.barrier` takes it


class Parameters(NamedTuple):
    """Networks' weights, their statistics and gradient, as the optimizer has them, and the target network's weights."""

    values: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    gradient: np.ndarray
    partial: np.ndarray  # [parts, size] gradients of each part's rows; of a single part it is the gradient itself
    target: np.ndarray


class Transitions(NamedTuple):
    """A batch, in flat arrays."""

    features: np.ndarray  # [B * inputs]
    next_features: np.ndarray
    action: np.ndarray  # [B * size]
    reward: np.ndarray  # [B]
    discount: np.ndarray
    noise: np.ndarray  # [draws * B * size]


class Descent(NamedTuple):
    """The numbers of a step of an optimizer."""

    learning_rate: float
    max_grad_norm: float  # negative for none
    beta1: float
    eps: float
    step: int  # which is taken, counted from 1
    tau: float  # how far the target network moves; 0 for not at all


class Memory(NamedTuple):
    """What one part works in, for up to `chunk` rows at once; numbers say where regions of `work` begin."""

    work: np.ndarray
    scratch: Scratch
    indices: np.ndarray  # [chunk] some rows
    chunk: int
    actor: int  # the actor's input and hidden layers
    critics: int  # the critics' input
    hidden: int  # the hidden layers of each critic
    grad: int  # with respect to a layer's outputs
    other: int  # likewise
    head: int  # packed
    outputs: int  # [rows, outputs] of the actor
    grad_outputs: int  # of the actor or of a critic
    values: int  # [critics, chunk]
    target: int  # [rows]
    log_prob: int  # [rows]
    action: int  # [rows, size]
    grad_action: int  # [rows, size]
    picked: int  # [rows, size] gradient with respect to the actions of some rows


@part()
def clamp(number: float, low: float, high: float) -> float:
    """Return a number within bounds; NaN stays NaN."""
    if number < low:
        return low
    return high if number > high else number


@part()
def share(size: int, index: int, parts: int) -> tuple[int, int]:
    """Return where a part's share of a flat array begins and ends."""
    begin = size // LANES * index // parts * LANES
    return begin, size if index == parts - 1 else size // LANES * (index + 1) // parts * LANES


@part()
def actor_pass(values: np.ndarray, stack: Stack, features: np.ndarray, first: int, rows: int, memory: Memory) -> int:
    """Write the actor's outputs for rows from `first` on and return where its last hidden layer begins."""
    work, inputs, width = memory.work, stack.sizes[0], stack.sizes[-1]
    put_columns(features, 0, first, rows, inputs, 0, work, memory.actor)
    hidden = memory.actor + rows * padded(inputs)
    last = hidden_forward(values, stack, 0, rows, work, memory.actor, hidden, memory.scratch)
    pack_head(values, stack.heads[0], width, stack.size, work, memory.head)
    count = len(stack.heads[0]) * stack.size
    head_forward(work, last, rows, width, work, memory.head, count, work, memory.outputs)
    return last


@part()
def actor_backward(
    values: np.ndarray, stack: Stack, rows: int, last: int, add: bool, memory: Memory, gradient: np.ndarray
) -> None:
    """Write or add the actor's gradient, given that with respect to its outputs."""
    work, width, count = memory.work, stack.sizes[-1], len(stack.heads[0]) * stack.size
    pack_head(values, stack.heads[0], width, stack.size, work, memory.head)
    head_gradient(
        work, last, rows, width, work, memory.grad_outputs, stack.heads[0], stack.size, add, memory.scratch, gradient
    )
    head_backward(work, memory.grad_outputs, rows, width, work, memory.head, count, work, memory.grad)
    hidden_backward(
        values, stack, 0, rows, work, memory.actor, last, memory.grad, memory.other, add, memory.scratch, gradient
    )


@part()
def critic_inputs(
    stack: Stack, features: np.ndarray, first: int, action: np.ndarray, action_at: int, action_first: int, size: int,
    rows: int, memory: Memory,
) -> None:  # fmt: skip
    """Write what the critics see: features from row `first` on and actions from row `action_first` on."""
    columns = stack.sizes[0] - size
    put_columns(features, 0, first, rows, columns, 0, memory.work, memory.critics)
    put_columns(action, action_at, action_first, rows, size, columns, memory.work, memory.critics)


@part()
def critic_pass(values: np.ndarray, stack: Stack, network: int, region: int, rows: int, memory: Memory) -> int:
    """Write a critic's values and return where its last hidden layer begins; its layers lie in the given region."""
    work, width = memory.work, stack.sizes[-1]
    hidden = memory.hidden + region * memory.chunk * hidden_width(stack)
    last = hidden_forward(values, stack, network, rows, work, memory.critics, hidden, memory.scratch)
    pack_head(values, stack.heads[network], width, 1, work, memory.head)
    head_forward(work, last, rows, width, work, memory.head, 1, work, memory.values + network * memory.chunk)
    return last


@part()
def smallest_values(values: np.ndarray, stack: Stack, regions: int, rows: int, memory: Memory) -> None:
    """Write the smallest of all critics' values to `target`; the critics' layers share one region or have their own."""
    work = memory.work
    for network in range(len(stack.places)):
        critic_pass(values, stack, network, network % regions, rows, memory)
        for row in range(rows):
            value = work[memory.values + network * memory.chunk + row]
            if network == 0 or value < work[memory.target + row] or value != value:  # NaN counts as the smallest
                work[memory.target + row] = value


@part()
def critic_loss(
    values: np.ndarray,
    stack: Stack,
    data: Transitions,
    first: int,
    rows: int,
    scale: float,
    add: bool,
    memory: Memory,
    gradient: np.ndarray,
    report: np.ndarray,
) -> None:
    """Write or add the critics' gradient of half of `scale` times the mean squared distance to `target`."""
    work, batch, width = memory.work, len(data.reward), stack.sizes[-1]
    critic_inputs(stack, data.features, first, data.action, 0, first, len(data.action) // batch, rows, memory)
    for network in range(len(stack.places)):
        last = critic_pass(values, stack, network, 0, rows, memory)
        for row in range(rows):
            value = work[memory.values + network * memory.chunk + row]
            error = value - work[memory.target + row]
            report[VALUE] += value / (batch * len(stack.places))
            report[LOSS_CRITIC] += 0.5 * scale * error * error / batch
            work[memory.grad_outputs + row] = np.float32(scale * error / batch)
        head_gradient(
            work, last, rows, width, work, memory.grad_outputs, stack.heads[network], 1, add, memory.scratch, gradient
        )
        head_backward(work, memory.grad_outputs, rows, width, work, memory.head, 1, work, memory.grad)
        hidden_backward(
            values, stack, network, rows, work, memory.critics, last, memory.grad, memory.other, add,
            memory.scratch, gradient,
        )  # fmt: skip


@part()
def add_action_gradient(
    values: np.ndarray, stack: Stack, network: int, rows: int, count: int, size: int, memory: Memory
) -> None:
    """Add the gradient with respect to actions, given that with respect to a critic's values of `count` of the rows.

    `memory.indices` name these rows; for others the critic's value does not count. Its pass lies in its own region.
    """
    work, width, indices = memory.work, stack.sizes[-1], memory.indices[:count]
    before_last = hidden_width(stack) - padded(width)
    last = memory.hidden + network * memory.chunk * hidden_width(stack) + rows * before_last
    pack_head(values, stack.heads[network], width, 1, work, memory.head)
    head_backward(work, memory.grad_outputs, count, width, work, memory.head, 1, work, memory.grad)
    input_gradient(
        values, stack, network, rows, indices, work, last, stack.sizes[0] - size, size, memory.grad, memory.other,
        memory.scratch, memory.head, memory.picked,
    )  # fmt: skip
    for row in range(count):
        for column in range(size):
            work[memory.grad_action + indices[row] * size + column] += work[memory.picked + row * size + column]


@part()
def sum_gradients(
    parameters: Parameters, descent: Descent, index: int, parts: int, report: np.ndarray, squares: int
) -> None:
    """Add up a part's share of all partial gradients, where the step depends on the norm of the whole gradient."""
    if descent.max_grad_norm >= 0:
        begin, end = share(len(parameters.values), index, parts)
        report[index, squares] = add_up(parameters.partial, begin, end, parameters.gradient)


@part()
def descend(parameters: Parameters, descent: Descent, index: int, parts: int, report: np.ndarray, squares: int) -> None:
    """Take an optimizer's step with a part's share of the weights, and move the target network's."""
    clipped, factor = descent.max_grad_norm >= 0, 1.0
    if clipped:
        total = 0.0
        for other in range(parts):
            total += report[other, squares]
        factor = clip_factor(math.sqrt(total), descent.max_grad_norm)
    begin, end = share(len(parameters.values), index, parts)
    for start in range(begin, end, _AT_ONCE):
        stop = min(start + _AT_ONCE, end)
        if not clipped:
            report[index, squares] += add_up(parameters.partial, start, stop, parameters.gradient)
        adam_range(
            parameters.values, parameters.mean, parameters.square, parameters.gradient, start, stop, factor,
            descent.step, descent.learning_rate, descent.beta1, descent.eps,
        )  # fmt: skip
        if descent.tau > 0:
            polyak(parameters.target, parameters.values, start, stop, descent.tau)
