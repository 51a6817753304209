"""The gradient of MuZero's loss in compiled code: what autograd gives for `algorithms.planning.unroll.muzero_loss`.

A batch is passed in chunks of rows. State k of the unroll has the rows from k * rows on, in all regions; of the
representation's regions, those are the rows of the observation that follows step k.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import fill
from rl_training.kernels.compiled.lanes import LANES, load, spread, store
from rl_training.kernels.compiled.planning.affine import affine, input_gradient, unpack_gradient
from rl_training.kernels.compiled.planning.parts import (
    DYNAMICS,
    GATES,
    GOAL,
    POLICY,
    PREDICTOR,
    PROJECTOR,
    REPRESENTATION,
    REWARD,
    REWARD_LOGITS,
    STATE_GATES,
    TRUNK,
    VALUE,
    Memory,
    Network,
    block_weights,
    copy_rows,
    hidden_backward,
    layer_backward,
    pack_network,
    relu_layer,
    relu_layer_backward,
    rescale_rows,
    rescale_rows_backward,
    run_block,
)
from rl_training.kernels.compiled.planning.recurrent import cell_backward, run_cell
from rl_training.kernels.compiled.planning.row_blocks import cosine_row, policy_row, scalar_row, squash
from rl_training.search.compilation import compiled, part

LOSS_POLICY, LOSS_VALUE, LOSS_REWARD, LOSS_CONSISTENCY, CLIPPED, STATES, VALUES, REWARDS, SUCCESSORS, REPORT = range(10)


class Batch(NamedTuple):
    """An `UnrollBatch` in flat arrays."""

    features: np.ndarray  # [B * inputs]
    feature_gradient: np.ndarray  # [B * inputs] to be written, or empty where the encoder has nothing to learn
    successors: np.ndarray  # [K * B * inputs], or empty
    action: np.ndarray  # [K * B] int64
    value: np.ndarray  # [(K + 1) * B]
    value_mask: np.ndarray
    reward: np.ndarray  # [K * B]
    reward_mask: np.ndarray
    policy: np.ndarray  # [(K + 1) * B * A]
    policy_mask: np.ndarray  # [(K + 1) * B]
    successor_mask: np.ndarray  # [K * B]
    weight: np.ndarray  # [B], or empty


class Settings(NamedTuple):
    """The loss's coefficients, and the number of steps."""

    steps: int
    value_coef: float
    reward_coef: float
    consistency_coef: float


@part()
def write_features(network: Network, memory: Memory, batch: Batch, steps: int, first: int, rows: int) -> None:
    """Write the observations' features in blocks."""
    inputs, count = network.layers[network.blocks[REPRESENTATION].first].inputs, len(batch.value) // (steps + 1)
    panel = (steps + 1) * rows * LANES
    for row in range((steps + 1) * rows if network.consistency else rows):
        step, index = row // rows, first + row % rows
        source = batch.features if step == 0 else batch.successors
        given = (index if step == 0 else (step - 1) * count + index) * inputs
        for column in range(inputs):
            place = network.regions.features + column // LANES * panel + row * LANES + column % LANES
            memory.trace[place] = source[given + column]


@part()
def read_feature_gradient(network: Network, memory: Memory, batch: Batch, steps: int, first: int, rows: int) -> None:
    """Write the gradient with respect to the features of rows of the batch."""
    block, total = network.blocks[REPRESENTATION], (steps + 1) * rows
    layer, target = network.layers[block.first], network.regions.features
    input_gradient(layer, memory.transposed, memory.grad, total, block.normed, 0, target, 0, rows, False)
    for row in range(rows):
        for column in range(layer.inputs):
            place = target + column // LANES * total * LANES + row * LANES + column % LANES
            batch.feature_gradient[(first + row) * layer.inputs + column] = memory.grad[place]


@part()
def unroll_forward(
    network: Network, flat: np.ndarray, memory: Memory, batch: Batch, settings: Settings, first: int, rows: int
) -> None:
    """Write everything that the network predicts for rows of the batch."""
    steps, regions, trace = settings.steps, network.regions, memory.trace
    total, count, width = (steps + 1) * rows, len(batch.action) // steps, network.latent
    observed = total if network.consistency else rows
    write_features(network, memory, batch, steps, first, rows)
    run_block(network, REPRESENTATION, flat, memory, total, regions.features, 0, 0, observed, batch.action, 0)
    output = network.blocks[REPRESENTATION].output
    rescale_rows(memory, 0, total, output, regions.encoded, 0, observed, width)
    copy_rows(trace, total, regions.encoded, regions.states, rows, width)
    output = network.blocks[DYNAMICS].output
    for step in range(steps):
        before, now = step * rows, (step + 1) * rows
        run_block(
            network, DYNAMICS, flat, memory, total, regions.states, before, now, rows, batch.action,
            step * count + first,
        )  # fmt: skip
        for column in range(0, width, LANES):
            place = column * total + now * LANES
            for index in range(place, place + rows * LANES, LANES):
                latent = load(trace, regions.states + index - rows * LANES)
                store(trace, output + index, load(trace, output + index) + latent)
        rescale_rows(memory, 1, total, output, regions.states, now, rows, width)
    relu_layer(network, TRUNK, memory, total, regions.states, regions.trunk, 0)
    layers, values = network.layers, memory.values
    affine(layers[POLICY], values, trace, total, regions.trunk, 0, regions.policy, 0, total)
    affine(layers[VALUE], values, trace, total, regions.trunk, 0, regions.value, 0, total)
    told = regions.states
    if network.horizon:
        affine(layers[GATES], values, trace, total, regions.states, rows, regions.gates, rows, total - rows)
        run_cell(
            layers[STATE_GATES], values, trace, rows, steps, network.horizon, regions.gates, regions.memory,
            regions.shown, regions.output,
        )  # fmt: skip
        told = regions.output
    relu_layer(network, REWARD, memory, total, told, regions.reward, rows)
    affine(layers[REWARD_LOGITS], values, trace, total, regions.reward, rows, regions.reward_logits, rows, total - rows)
    if network.consistency:
        later = total - rows
        run_block(network, PROJECTOR, flat, memory, total, regions.states, rows, rows, later, batch.action, 0)
        source = network.blocks[PROJECTOR].output
        run_block(network, PREDICTOR, flat, memory, total, source, rows, rows, later, batch.action, 0)
        run_block(network, GOAL, flat, memory, total, regions.encoded, rows, rows, later, batch.action, 0)


@part()
def loss_rows(
    network: Network, memory: Memory, batch: Batch, settings: Settings, first: int, rows: int, report: np.ndarray
) -> None:
    """Add the loss's parts to the report; write the gradients with respect to what the network predicts."""
    steps, regions, trace, grad = settings.steps, network.regions, memory.trace, memory.grad
    total, count = (steps + 1) * rows, len(batch.action) // steps
    panel, atoms = total * LANES, network.layers[VALUE].outputs
    actions, support = network.layers[POLICY].outputs, network.layers[VALUE].outputs // 2
    for row in range(total):
        step, index, place = row // rows, first + row % rows, row * LANES
        share = (batch.weight[index] if len(batch.weight) else 1.0) / count / (steps if step else 1)
        at = step * count + index
        mask = batch.policy_mask[at]
        loss = policy_row(trace, grad, regions.policy + place, panel, actions, batch.policy, at * actions, share * mask)
        report[LOSS_POLICY] += loss * mask
        report[STATES] += mask
        mask = batch.value_mask[at]
        factor = share * mask * settings.value_coef
        loss = scalar_row(trace, grad, regions.value + place, panel, atoms, batch.value[at], factor)
        report[LOSS_VALUE] += loss * mask
        report[VALUES] += mask
        report[CLIPPED] += mask if abs(squash(batch.value[at])) > support else 0.0
        if step == 0:
            continue
        at -= count
        mask = batch.reward_mask[at]
        factor = share * mask * settings.reward_coef
        loss = scalar_row(trace, grad, regions.reward_logits + place, panel, atoms, batch.reward[at], factor)
        report[LOSS_REWARD] += loss * mask
        report[REWARDS] += mask
        report[CLIPPED] += mask if abs(squash(batch.reward[at])) > support else 0.0
        if network.consistency:
            mask = batch.successor_mask[at]
            factor = -share * mask * settings.consistency_coef
            imagined, goal = network.blocks[PREDICTOR].output + place, network.blocks[GOAL].output + place
            width = network.layers[network.blocks[PREDICTOR].second].outputs
            report[LOSS_CONSISTENCY] -= mask * cosine_row(trace, grad, imagined, goal, panel, width, factor)
            report[SUCCESSORS] += mask


@part()
def heads_backward(
    network: Network, flat: np.ndarray, gradient: np.ndarray, memory: Memory, settings: Settings, rows: int
) -> None:
    """Write the gradient with respect to the unroll's states that comes from all that is predicted of them."""
    steps, regions, grad = settings.steps, network.regions, memory.grad
    total, later = (steps + 1) * rows, steps * rows
    layer_backward(network, POLICY, memory, total, regions.trunk, regions.policy, 0, False)
    layer_backward(network, VALUE, memory, total, regions.trunk, regions.value, 0, True)
    relu_layer_backward(network, TRUNK, memory, total, regions.states, regions.trunk, 0, False)
    told = regions.output if network.horizon else regions.states
    layer_backward(network, REWARD_LOGITS, memory, total, regions.reward, regions.reward_logits, rows, False)
    relu_layer_backward(network, REWARD, memory, total, told, regions.reward, rows, not network.horizon)
    if network.horizon:
        cell_backward(
            network.layers[STATE_GATES], memory.transposed, memory.gradient, memory.trace, grad, rows, steps,
            network.horizon, regions.gates, regions.memory, regions.shown, regions.output,
        )  # fmt: skip
        layer_backward(network, GATES, memory, total, regions.states, regions.gates, rows, True)
    if not network.consistency:
        return
    source = network.blocks[PROJECTOR].output
    for number in (PREDICTOR, PROJECTOR):
        given = source if number == PREDICTOR else regions.states
        hidden_backward(network, number, flat, gradient, memory, total, rows, later)
        block_weights(network, number, memory, total, given, rows, rows, later)
        block = network.blocks[number]
        input_gradient(
            network.layers[block.first], memory.transposed, grad, total, block.normed, rows, given, rows, later,
            number == PROJECTOR,
        )  # fmt: skip


@part()
def unroll_backward(
    network: Network, flat: np.ndarray, gradient: np.ndarray, memory: Memory, batch: Batch, settings: Settings,
    first: int, rows: int,
) -> None:  # fmt: skip
    """Add the gradients of dynamics and representation, given that with respect to the states of the unroll."""
    steps, regions, grad = settings.steps, network.regions, memory.grad
    total, count, width = (steps + 1) * rows, len(batch.action) // steps, network.latent
    block, half = network.blocks[DYNAMICS], spread(0.5)
    layer = network.layers[block.first]
    for step in range(steps, 0, -1):
        before, now = (step - 1) * rows, step * rows
        rescale_rows_backward(memory, 1, total, block.output, regions.states, now, rows, width)
        hidden_backward(network, DYNAMICS, flat, gradient, memory, total, now, rows)
        for row in range(rows):
            target = network.action_rows + batch.action[(step - 1) * count + first + row] * layer.outputs
            for column in range(0, layer.outputs, LANES):
                given = load(grad, block.normed + column * total + (now + row) * LANES)
                store(gradient, target + column, load(gradient, target + column) + given)
        # The gradient with respect to a step's input is halved; region `encoded` is free for it until the end.
        input_gradient(layer, memory.transposed, grad, total, block.normed, now, regions.encoded, before, rows, False)
        for column in range(0, width, LANES):
            place = column * total + before * LANES
            for index in range(place, place + rows * LANES, LANES):
                given = load(grad, regions.encoded + index) + load(grad, block.output + index + rows * LANES)
                store(grad, regions.states + index, load(grad, regions.states + index) + given * half)
    block_weights(network, DYNAMICS, memory, total, regions.states, 0, rows, total - rows)
    copy_rows(grad, total, regions.states, regions.encoded, rows, width)
    rescale_rows_backward(memory, 0, total, network.blocks[REPRESENTATION].output, regions.encoded, 0, rows, width)
    hidden_backward(network, REPRESENTATION, flat, gradient, memory, total, 0, rows)
    block_weights(network, REPRESENTATION, memory, total, regions.features, 0, 0, rows)
    if len(batch.feature_gradient):
        read_feature_gradient(network, memory, batch, steps, first, rows)


@compiled
def unroll_gradient(
    flat: np.ndarray,
    gradient: np.ndarray,
    network: Network,
    memory: Memory,
    batch: Batch,
    settings: Settings,
    report: np.ndarray,
) -> None:
    """Overwrite the flat gradient by that of the loss; write the sums of the loss's parts and of their masks."""
    pack_network(network, flat, memory)
    fill(memory.gradient, 0, len(memory.gradient), 0.0)
    for index in range(len(gradient)):
        gradient[index] = 0.0
    for index in range(REPORT):
        report[index] = 0.0
    count = len(batch.action) // settings.steps
    for first in range(0, count, memory.chunk):
        rows = min(count - first, memory.chunk)
        unroll_forward(network, flat, memory, batch, settings, first, rows)
        loss_rows(network, memory, batch, settings, first, rows, report)
        heads_backward(network, flat, gradient, memory, settings, rows)
        unroll_backward(network, flat, gradient, memory, batch, settings, first, rows)
    for number in range(len(network.layers)):
        if network.layers[number].inputs:
            unpack_gradient(network.layers[number], memory.gradient, gradient)
    if network.horizon:
        gates, state = network.layers[GATES], network.layers[STATE_GATES]
        for index in range(gates.outputs):
            gradient[state.bias_flat + index] = memory.gradient[gates.bias + index]
