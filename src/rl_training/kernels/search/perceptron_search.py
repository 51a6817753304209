"""Multi-layer perceptrons in compiled code, and the search that never leaves it.

Weights, biases and activations are flat float32 arrays; `perceptron_layout` lays them out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, store
from rl_training.kernels.search.network_outputs import expectation, step_cell
from rl_training.kernels.search.perceptron_layout import NodeStates, PackedMLP
from rl_training.kernels.search.products import multiply
from rl_training.kernels.search.row_functions import activate, add_row, normalize, rescale
from rl_training.search.compilation import compiled, part
from rl_training.search.growth import grow, select
from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree, leaves_of, trees_of


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


@part()
def run_layers(network: PackedMLP, first: int, last: int, leaves: Leaves, activations: np.ndarray) -> None:
    """Run the layers from `first` to before `last`, for as many rows as there are leaves."""
    rows, weights = len(leaves.actions), network.weights
    for number in range(first, last):
        layer = network.layers[number]
        product(layer, rows, weights, activations)
        for row in range(rows):
            start, width = layer.target * rows + row * layer.outputs, layer.width
            if layer.action_rows >= 0:
                add_row(activations, start, weights, layer.action_rows + leaves.actions[row] * width, width)
            if layer.norm >= 0:
                normalize(activations, start, width, weights, layer.norm, layer.norm + width)
            activate(activations, start, width, layer.activation)
            if layer.residual:
                add_row(activations, start, activations, row * network.latent_stride, width)
            if layer.rescale:
                rescale(activations, start, width)
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
        copy_row(activations, latent + row * stride, states.latents, own * stride, stride)
        depth = states.depths[above] + np.float32(1.0)
        if depth < network.horizon:
            copy_row(activations, after + row * cell, states.cells, 2 * own * cell, cell)
            copy_row(activations, after + (rows + row) * cell, states.cells, (2 * own + 1) * cell, cell)
            states.prefixes[own], states.depths[own] = told, depth
        else:  # the cell starts anew
            for index in range(2 * own * cell, 2 * (own + 1) * cell):
                states.cells[index] = 0.0
            states.prefixes[own] = states.depths[own] = np.float32(0.0)


@part()
def copy_row(source: np.ndarray, at: int, target: np.ndarray, to: int, width: int) -> None:
    """Copy a row of whole lanes."""
    for index in range(0, width, LANES):
        store(target, to + index, load(source, at + index))


@part()
def _scalar(network: PackedMLP, index: int, activations: np.ndarray, row: int, rows: int) -> float:
    layer = network.layers[index]
    start = layer.target * rows + row * layer.outputs
    if layer.width == 1:
        return float(activations[start])
    return expectation(activations, start, layer.width)


@compiled
def predict_mlp(
    network: PackedMLP, latents: np.ndarray, leaves: Leaves, activations: np.ndarray, together: int
) -> None:
    """Write the values and policies of latents [B, latent] into `leaves`, so many rows at a time.

    `activations` is scratch memory.
    """
    layer = network.layers[network.latent]
    for first in range(0, len(latents), together):
        some = leaves_of(leaves, first, min(first + together, len(latents)))
        rows = len(some.values)
        for row in range(rows):
            start = layer.target * rows + row * layer.outputs
            for index in range(layer.width):
                activations[start + index] = latents[first + row, index]
        run_layers(network, network.latent + 1, network.policy + 1, some, activations)
        read_predictions(network, some, activations)


@part()
def states_of(network: PackedMLP, states: NodeStates, first: int, last: int) -> NodeStates:
    """Return the states of some of the nodes, as views."""
    stride, cell = network.latent_stride, 2 * network.cell_stride
    return NodeStates(
        states.latents[first * stride : last * stride],
        states.cells[first * cell : last * cell],
        states.prefixes[first:last],
        states.depths[first:last],
    )


@part()
def write_roots(network: PackedMLP, roots: np.ndarray, first: int, states: NodeStates, batch: int, nodes: int) -> None:
    """Write the states of roots, whose latents are those from `first` on: a recurrent cell is empty."""
    for root in range(batch):
        node = root * nodes
        for index in range(roots.shape[1]):
            states.latents[node * network.latent_stride + index] = roots[first + root, index]
        for index in range(2 * node * network.cell_stride, 2 * (node + 1) * network.cell_stride):
            states.cells[index] = 0.0
        states.prefixes[node] = states.depths[node] = np.float32(0.0)


@part()
def grow_trees(
    rule: Rule, tree: Tree, network: PackedMLP, leaves: Leaves, states: NodeStates, activations: np.ndarray
) -> None:
    """Run all simulations of some trees."""
    batch, nodes = tree.nodes.shape
    stride, cell = network.latent_stride, network.cell_stride
    before = network.cell_before * batch
    for node in range(1, nodes):
        select(rule, tree, node - 1, leaves)
        for root in range(batch):
            above = leaves.parents[root]
            copy_row(states.latents, above * stride, activations, root * stride, stride)
            copy_row(states.cells, 2 * above * cell, activations, before + root * cell, cell)
            copy_row(states.cells, (2 * above + 1) * cell, activations, before + (batch + root) * cell, cell)
        run_layers(network, 0, len(network.layers), leaves, activations)
        read_predictions(network, leaves, activations)
        read_steps(network, node, leaves, states, nodes, activations)
        grow(tree, node, leaves)


@compiled
def search_mlp(
    rule: Rule,
    tree: Tree,
    network: PackedMLP,
    leaves: Leaves,
    roots: np.ndarray,
    states: NodeStates,
    activations: np.ndarray,
    together: int,
) -> None:
    """Run a whole search from latents [B, latent], so many trees at a time.

    `states` are of the nodes of all trees, or of so many trees: each group then overwrites those of the one before.
    `activations` is scratch memory.
    """
    batch, nodes = tree.nodes.shape
    kept = len(states.depths) == batch * nodes
    for first in range(0, batch, together):
        last = min(first + together, batch)
        begin = first * nodes if kept else 0
        some = states_of(network, states, begin, begin + (last - first) * nodes)
        write_roots(network, roots, first, some, last - first, nodes)
        grow_trees(rule, trees_of(tree, first, last), network, leaves_of(leaves, first, last), some, activations)
