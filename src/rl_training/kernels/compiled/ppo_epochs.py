"""PPO's gradient steps in compiled code: every epoch over a rollout in one call, for perceptrons on the CPU.

Computes the same as `algorithms.ppo.PPO.improve`. Weights and statistics of the optimizer lie in blocks for the whole
call and are written back at its end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import fill, gather, pack, padded, unpack
from rl_training.kernels.compiled.lanes import LANES
from rl_training.kernels.compiled.perceptrons import (
    backward,
    forward,
    forward_with,
    pack_layers,
    transpose_layers,
    unpack_layers,
)
from rl_training.kernels.compiled.policies import (
    BERNOULLI,
    CATEGORICAL,
    bernoulli,
    bernoulli_gradient,
    categorical,
    categorical_gradient,
    element,
    gaussian,
    gaussian_gradient,
    mask_outputs,
    sample,
)
from rl_training.kernels.compiled.steps import adam, clip_factor, norm, rmsprop
from rl_training.search.compilation import compiled, part

ACTOR, CRITIC = 0, 1
LOSS_POLICY, LOSS_VALUE, ENTROPY, KL, CLIPPED, ROWS, NORM, BATCHES, STEPS, STOPPED, REPORT = range(11)


class Networks(NamedTuple):
    """Actor and critic, in this order: their layers, what the actor's outputs mean, and where all of it lies."""

    sizes: np.ndarray  # [2, layers + 1] widths from input to output
    places: np.ndarray  # [2, layers, 4], as `pack_layers` takes them
    ends: np.ndarray  # [2] where their packed weights end
    transposed_ends: np.ndarray  # [2] where their transposed weights end
    activation: int
    policy: int
    choices: np.ndarray  # of each categorical variable
    log_std: int  # index of a Gaussian policy's log standard deviations in the flat weights, else -1
    size: int  # of all packed weights; log standard deviations follow the critic's


class Memory(NamedTuple):
    """What a call works in: the packed weights, statistics and gradient, and the passes of `chunk` rows."""

    values: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    gradient: np.ndarray
    transposed: np.ndarray
    trace: np.ndarray
    grad: np.ndarray  # sixteen zeros, then two regions
    other: int  # where the second region begins
    chunk: int  # rows that are passed at once


class Transitions(NamedTuple):
    """The transitions of a rollout, in flat arrays."""

    features: np.ndarray  # [N * inputs]
    action: np.ndarray  # [N * variables] float32
    mask: np.ndarray  # [N * outputs] uint8, or empty
    log_prob: np.ndarray  # [N]
    value: np.ndarray
    advantage: np.ndarray
    target: np.ndarray


class Settings(NamedTuple):
    """The numbers of the loss and of the optimizer."""

    minibatch: int
    normalize: bool
    clip_value: bool
    clip_coef: float
    ent_coef: float
    vf_coef: float
    stop_kl: float  # negative for none
    learning_rate: float
    max_grad_norm: float  # negative for none
    adam: bool
    beta1: float
    eps: float


@part()
def pack_all(flat: np.ndarray, networks: Networks, packed: np.ndarray) -> None:
    """Pack weights, or what belongs to each of them."""
    at = 0
    for network in range(2):
        at = pack_layers(flat, networks.places[network], networks.sizes[network], packed, at)
    if networks.log_std >= 0:
        pack(flat, networks.log_std, 0, 1, 1, networks.sizes[ACTOR, -1], packed, at)


@part()
def unpack_all(packed: np.ndarray, networks: Networks, flat: np.ndarray) -> None:
    """Do the reverse of `pack_all`."""
    at = 0
    for network in range(2):
        at = unpack_layers(packed, at, networks.places[network], networks.sizes[network], flat)
    if networks.log_std >= 0:
        unpack(packed, at, 1, networks.sizes[ACTOR, -1], flat, networks.log_std, 0, 1)


@part()
def normalization(data: Transitions, indices: np.ndarray, first: int, rows: int) -> tuple[float, float]:
    """Return the mean of a minibatch's advantages and the factor that gives them unit deviation."""
    total = 0.0
    for index in range(first, first + rows):
        total += data.advantage[indices[index] if len(indices) else index]
    mean, squares = total / rows, 0.0
    for index in range(first, first + rows):
        squares += (data.advantage[indices[index] if len(indices) else index] - mean) ** 2
    return mean, 1.0 / (math.sqrt(squares / (rows - 1)) + 1e-8)


@part()
def evaluate_row(
    networks: Networks, memory: Memory, data: Transitions, outputs: int, rows: int, row: int, index: int
) -> tuple[float, float]:
    """Return the log-probability of a stored action and the entropy of its policy."""
    width, size = networks.sizes[ACTOR, -1], len(data.action) // len(data.log_prob)
    mask_outputs(memory.trace, outputs, rows, row, data.mask, index * width, width)
    if networks.policy == CATEGORICAL:
        return categorical(
            memory.trace, outputs, rows, row, networks.choices, data.action, index * size, memory.grad, LANES
        )
    elif networks.policy == BERNOULLI:
        return bernoulli(memory.trace, outputs, rows, row, size, data.action, index * size)
    log_std = networks.ends[CRITIC]
    return gaussian(memory.trace, outputs, rows, row, size, memory.values, log_std, data.action, index * size)


@part()
def policy_gradient_row(
    networks: Networks,
    memory: Memory,
    data: Transitions,
    outputs: int,
    rows: int,
    row: int,
    index: int,
    grad_log_prob: float,
    grad_entropy: float,
) -> None:
    """Write a row's gradient with respect to the policy's outputs."""
    size, trace, grad = len(data.action) // len(data.log_prob), memory.trace, memory.grad
    mask_at = index * networks.sizes[ACTOR, -1]
    if networks.policy == CATEGORICAL:
        categorical_gradient(
            trace, outputs, rows, row, networks.choices, data.action, index * size, data.mask, mask_at,
            grad_log_prob, grad_entropy, grad, LANES,
        )  # fmt: skip
    elif networks.policy == BERNOULLI:
        bernoulli_gradient(
            trace, outputs, rows, row, size, data.action, index * size, data.mask, mask_at,
            grad_log_prob, grad_entropy, grad, LANES,
        )  # fmt: skip
    else:
        log_std = networks.ends[CRITIC]
        gaussian_gradient(
            trace, outputs, rows, row, size, memory.values, log_std, data.action, index * size,
            grad_log_prob, grad_entropy, grad, LANES, memory.gradient, log_std,
        )  # fmt: skip


@part()
def policy_loss(
    networks: Networks,
    memory: Memory,
    data: Transitions,
    settings: Settings,
    indices: np.ndarray,
    first: int,
    rows: int,
    batch: int,
    mean: float,
    scale: float,
    outputs: int,
    report: np.ndarray,
) -> None:
    """Write the gradient of the clipped policy loss and of the entropy bonus with respect to the actor's outputs."""
    # Sums in variables: each addition to an array would wait for the one before to be stored.
    loss, entropies, divergence, clipped, share = 0.0, 0.0, 0.0, 0, 1.0 / batch
    lowest, highest = 1.0 - settings.clip_coef, 1.0 + settings.clip_coef
    for row in range(rows):
        index = indices[first + row] if len(indices) else first + row
        log_prob, entropy = evaluate_row(networks, memory, data, outputs, rows, row, index)
        log_ratio = log_prob - data.log_prob[index]
        ratio, advantage = math.exp(log_ratio), (data.advantage[index] - mean) * scale
        gain = advantage * ratio
        limited = advantage * min(max(ratio, lowest), highest)
        loss -= min(gain, limited)
        entropies += entropy
        divergence += ratio - 1.0 - log_ratio
        clipped += abs(ratio - 1.0) > settings.clip_coef
        grad_log_prob = 0.0 if gain > limited else -gain * share
        policy_gradient_row(
            networks, memory, data, outputs, rows, row, index, grad_log_prob, -settings.ent_coef * share
        )
    report[LOSS_POLICY] += loss * share
    report[ENTROPY] += entropies * share
    report[KL] += divergence
    report[CLIPPED] += clipped


@part()
def value_loss(
    memory: Memory,
    data: Transitions,
    settings: Settings,
    indices: np.ndarray,
    first: int,
    rows: int,
    batch: int,
    outputs: int,
    report: np.ndarray,
) -> None:
    """Write the gradient of the value loss with respect to the critic's outputs."""
    loss, factor, near = 0.0, 2.0 * settings.vf_coef / batch, np.float32(settings.clip_coef)
    for row in range(rows):
        index = indices[first + row] if len(indices) else first + row
        value = memory.trace[element(outputs, rows, row, 0)]
        error = value - data.target[index]
        squared = error * error
        if settings.clip_value:
            clipped = min(max(value, data.value[index] - near), data.value[index] + near) - data.target[index]
            if clipped * clipped > squared:
                squared, error = clipped * clipped, np.float32(0.0)
        loss += squared
        memory.grad[element(LANES, rows, row, 0)] = np.float32(error * factor)
    report[LOSS_VALUE] += loss / batch


@part()
def minibatch_gradient(
    networks: Networks,
    memory: Memory,
    data: Transitions,
    settings: Settings,
    indices: np.ndarray,
    first: int,
    batch: int,
    report: np.ndarray,
) -> None:
    """Overwrite the packed gradient by that of a minibatch's loss and add up what is reported."""
    mean, scale = 0.0, 1.0
    if settings.normalize:
        mean, scale = normalization(data, indices, first, batch)
    fill(memory.gradient, 0, networks.size, 0.0)
    weights, transposed = 0, 0
    for network in range(2):
        sizes = networks.sizes[network]
        transpose_layers(memory.values, weights, sizes, memory.transposed, transposed)
        for start in range(0, batch, memory.chunk):
            rows, at = min(batch - start, memory.chunk), first + start
            gather(data.features, sizes[0], indices, at, rows, memory.trace, 0)
            outputs = forward_with(
                memory.values, weights, sizes, networks.activation, rows, memory.trace, 0,
                memory.transposed, networks.transposed_ends[network],
            )  # fmt: skip
            fill(memory.grad, LANES, rows * padded(sizes[-1]), 0.0)
            if network == ACTOR:
                policy_loss(networks, memory, data, settings, indices, at, rows, batch, mean, scale, outputs, report)
            else:
                value_loss(memory, data, settings, indices, at, rows, batch, outputs, report)
            backward(
                memory.transposed, networks.transposed_ends[network], memory.gradient, networks.ends[network], sizes,
                networks.activation, rows, memory.trace, outputs, memory.grad, LANES, memory.other,
            )  # fmt: skip
        weights, transposed = networks.ends[network], networks.transposed_ends[network]
    report[ROWS] += batch
    report[BATCHES] += 1


@compiled
def ppo_epochs(
    flat: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    networks: Networks,
    memory: Memory,
    data: Transitions,
    settings: Settings,
    indices: np.ndarray,
    epochs: int,
    steps: int,
    gradient: np.ndarray,
    report: np.ndarray,
) -> None:
    """Take the gradient steps of some epochs, after `steps` that were taken before.

    Epoch e goes through the transitions in the order indices[e * N :]; empty indices stand for the rollout's own order.
    Stops where a minibatch shows that the policy has changed by more than `stop_kl`, before its step is taken. Zero
    epochs take no step: the gradient of the loss of the transitions that indices name is written to `gradient`.
    """
    pack_all(flat, networks, memory.values)
    if epochs == 0:  # not a function of its own, which would be compiled once more
        minibatch_gradient(networks, memory, data, settings, indices, 0, len(indices), report)
        unpack_all(memory.gradient, networks, gradient)
        return
    pack_all(mean, networks, memory.mean)
    pack_all(square, networks, memory.square)
    count = len(data.log_prob)
    for batch_index in range(epochs * ((count + settings.minibatch - 1) // settings.minibatch)):
        per_epoch = (count + settings.minibatch - 1) // settings.minibatch
        first = batch_index % per_epoch * settings.minibatch
        batch = min(settings.minibatch, count - first)
        if batch == 1 and settings.normalize:
            continue  # a left-over single row has no deviation
        if len(indices):
            first += batch_index // per_epoch * count
        divergence = report[KL]
        minibatch_gradient(networks, memory, data, settings, indices, first, batch, report)
        if settings.stop_kl >= 0 and (report[KL] - divergence) / batch > settings.stop_kl:
            report[STOPPED] = 1
            break
        size = norm(memory.gradient, 0, networks.size)
        factor = clip_factor(size, settings.max_grad_norm)
        report[NORM] += size
        report[STEPS] += 1
        step = steps + int(report[STEPS])
        if settings.adam:
            adam(
                memory.values, memory.mean, memory.square, memory.gradient, networks.size, factor, step,
                settings.learning_rate, settings.beta1, settings.eps,
            )  # fmt: skip
        else:
            rmsprop(
                memory.values, memory.square, memory.gradient, networks.size, factor, step,
                settings.learning_rate, settings.eps,
            )  # fmt: skip
    unpack_all(memory.values, networks, flat)
    unpack_all(memory.mean, networks, mean)
    unpack_all(memory.square, networks, square)


@compiled
def network_outputs(
    flat: np.ndarray,
    networks: Networks,
    memory: Memory,
    network: int,
    features: np.ndarray,
    indices: np.ndarray,
    out: np.ndarray,
    noise: np.ndarray,
    mask: np.ndarray,
    choice: np.ndarray,
    action: np.ndarray,
) -> None:
    """Write the outputs [N * outputs] of the actor or the critic for features [N * inputs]; `indices` is empty.

    Where noise [N * outputs] is given, actions are drawn as well.
    """
    sizes = networks.sizes[network]
    pack_layers(flat, networks.places[network], sizes, memory.values, 0)
    inputs, outputs = sizes[0], sizes[-1]
    count = len(features) // inputs
    for first in range(0, count, memory.chunk):
        rows = min(count - first, memory.chunk)
        gather(features, inputs, indices, first, rows, memory.trace, 0)
        at = forward(memory.values, 0, sizes, networks.activation, rows, memory.trace, 0)
        unpack(memory.trace, at, rows, outputs, out, first * outputs, outputs, 1)
    if len(noise):
        sample(
            out, count, outputs, networks.policy, networks.choices, flat, networks.log_std, noise, mask, choice, action
        )
