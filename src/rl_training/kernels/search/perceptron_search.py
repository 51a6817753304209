"""Multi-layer perceptrons in compiled code, and the search that never leaves it.

Weights, biases and activations are flat float32 arrays; `perceptron_layout` lays them out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.kernels.search.exponentials import expectation, exponential, step_cell
from rl_training.kernels.search.perceptron_layout import ELU, GELU, RELU, SILU, TANH, NodeStates, PackedMLP
from rl_training.kernels.search.products import multiply
from rl_training.search.compilation import compiled, part
from rl_training.search.growth import grow, select
from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree

# Sums may be taken in any order; infinities and NaN keep their meaning.
ANY_ORDER = {"reassoc", "contract", "nsz"}


@part()
def product(layer: Any, rows: int, weights: np.ndarray, activations: np.ndarray) -> None:
    """Multiply a layer's input with its weight and add its bias."""
    source, target = layer.source * rows, layer.target * rows
    multiply(
        rows,
        activations,
        source,
        layer.stride,
        target,
        layer.outputs,
        weights,
        layer.weight,
        layer.bias,
        layer.inputs,
    )


@part(fastmath=ANY_ORDER)
def activate(values: np.ndarray, activation: int) -> None:
    """Apply an activation in place."""
    one, half = np.float32(1.0), np.float32(0.5)
    if activation == RELU:
        for index in range(len(values)):
            values[index] = max(values[index], np.float32(0.0))
    elif activation == TANH:
        for index in range(len(values)):
            values[index] = one - np.float32(2.0) / (exponential(np.float32(2.0) * values[index]) + one)
    elif activation == ELU:
        for index in range(len(values)):
            x = values[index]
            values[index] = x if x > 0 else exponential(x) - one
    elif activation == SILU:
        for index in range(len(values)):
            values[index] = values[index] / (one + exponential(-values[index]))
    elif activation == GELU:
        for index in range(len(values)):
            values[index] = values[index] * half * (one + np.float32(math.erf(values[index] * math.sqrt(0.5))))


@part(fastmath=ANY_ORDER)
def normalize(values: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> None:
    """Apply a layer normalisation in place."""
    mean = np.float32(0.0)
    for index in range(len(values)):
        mean += values[index]
    mean /= np.float32(len(values))
    variance = np.float32(0.0)
    for index in range(len(values)):
        variance += (values[index] - mean) * (values[index] - mean)
    scale = np.float32(1.0 / math.sqrt(variance / len(values) + 1e-5))
    for index in range(len(values)):
        values[index] = (values[index] - mean) * scale * gain[index] + shift[index]


@part()
def rescale(values: np.ndarray) -> None:
    """Scale to [0, 1] by the smallest and the largest, in place."""
    low = high = values[0]
    for index in range(1, len(values)):
        low, high = min(low, values[index]), max(high, values[index])
    span = max(high - low, np.float32(1e-5))
    for index in range(len(values)):
        values[index] = (values[index] - low) / span


@part()
def run_layers(network: PackedMLP, first: int, last: int, leaves: Leaves, activations: np.ndarray) -> None:
    """Run the layers from `first` to before `last`, for as many rows as there are leaves."""
    rows, weights = len(leaves.actions), network.weights
    for number in range(first, last):
        layer = network.layers[number]
        product(layer, rows, weights, activations)
        for row in range(rows):
            start = layer.target * rows + row * layer.outputs
            values = activations[start : start + layer.width]
            if layer.action_rows >= 0:
                action_row = layer.action_rows + leaves.actions[row] * layer.width
                for index in range(layer.width):
                    values[index] += weights[action_row + index]
            if layer.norm >= 0:
                shift = layer.norm + layer.width
                normalize(values, weights[layer.norm : shift], weights[shift : shift + layer.width])
            activate(values, layer.activation)
            if layer.residual:
                for index in range(layer.width):
                    values[index] += activations[row * network.latent_stride + index]
            if layer.rescale:
                rescale(values)
        if network.cell >= 0 and number == network.cell + 1:
            step_cells(network, rows, activations)


@part()
def step_cells(network: PackedMLP, rows: int, activations: np.ndarray) -> None:
    """Make the recurrent cells' step from the gates of their inputs and of their states."""
    stride = network.cell_stride
    before, after = network.cell_before * rows, network.cell_after * rows
    for row in range(rows):
        step_cell(
            activations,
            network.layers[network.cell].target * rows + row * 4 * stride,
            network.layers[network.cell + 1].target * rows + row * 4 * stride,
            before + (rows + row) * stride,  # memories stand behind the outputs of all rows
            after + row * stride,
            after + (rows + row) * stride,
            stride,
        )


@part()
def read_predictions(network: PackedMLP, leaves: Leaves, activations: np.ndarray) -> None:
    """Write the values and policy logits that the heads put out."""
    rows, policy = len(leaves.values), network.layers[network.policy]
    for row in range(rows):
        leaves.values[row] = _scalar(network, network.value, activations, row, rows)
        start = policy.target * rows + row * policy.outputs
        for index in range(policy.width):
            leaves.logits[row, index] = activations[start + index]


@part()
def read_steps(
    network: PackedMLP, node: int, leaves: Leaves, states: NodeStates, nodes: int, activations: np.ndarray
) -> None:
    """Write the rewards and discounts of the leaves, and what to go on from at them."""
    rows, stride, cell = len(leaves.rewards), network.latent_stride, network.cell_stride
    latent, after = network.layers[network.latent].target * rows, network.cell_after * rows
    for row in range(rows):
        own, above = row * nodes + node, leaves.parents[row]
        told = np.float32(_scalar(network, network.reward, activations, row, rows))
        leaves.rewards[row] = told - states.prefixes[above]
        leaves.discounts[row] = network.constant_discount
        if network.discount >= 0:
            leaves.discounts[row] = _scalar(network, network.discount, activations, row, rows)
        copy(activations, latent + row * stride, states.latents[own])
        depth = states.depths[above] + np.float32(1.0)
        if depth < network.horizon:
            copy(activations, after + row * cell, states.cells[own, :cell])
            copy(activations, after + (rows + row) * cell, states.cells[own, cell:])
            states.prefixes[own], states.depths[own] = told, depth
        else:  # the cell starts anew
            states.cells[own, :] = np.float32(0.0)
            states.prefixes[own] = states.depths[own] = np.float32(0.0)


@part()
def copy(source: np.ndarray, start: int, target: np.ndarray) -> None:
    """Write as many numbers as the target holds."""
    for index in range(len(target)):
        target[index] = source[start + index]


@part()
def _scalar(network: PackedMLP, index: int, activations: np.ndarray, row: int, rows: int) -> float:
    layer = network.layers[index]
    start = layer.target * rows + row * layer.outputs
    if layer.width == 1:
        return float(activations[start])
    return expectation(activations, start, layer.width)


@compiled
def predict_mlp(network: PackedMLP, latents: np.ndarray, leaves: Leaves, activations: np.ndarray) -> None:
    """Write the values and policies of latents [B, latent] into `leaves`; `activations` is scratch memory."""
    rows, layer = len(latents), network.layers[network.latent]
    for row in range(rows):
        start = layer.target * rows + row * layer.outputs
        copy(latents[row], 0, activations[start : start + layer.width])
    run_layers(network, network.latent + 1, network.policy + 1, leaves, activations)
    read_predictions(network, leaves, activations)


@compiled
def search_mlp(
    rule: Rule, tree: Tree, network: PackedMLP, leaves: Leaves, states: NodeStates, activations: np.ndarray
) -> None:
    """Run a whole search: `states` holds those of the roots, `activations` is scratch memory."""
    batch, nodes = tree.nodes.shape
    stride, cell = network.latent_stride, network.cell_stride
    before = network.cell_before * batch
    for node in range(1, nodes):
        select(rule, tree, node - 1, leaves)
        for root in range(batch):
            above = leaves.parents[root]
            copy(states.latents[above], 0, activations[root * stride : (root + 1) * stride])
            start = before + root * cell
            copy(states.cells[above], 0, activations[start : start + cell])
            start += batch * cell
            copy(states.cells[above], cell, activations[start : start + cell])
        run_layers(network, 0, len(network.layers), leaves, activations)
        read_predictions(network, leaves, activations)
        read_steps(network, node, leaves, states, nodes, activations)
        grow(tree, node, leaves)
