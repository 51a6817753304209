"""Multi-layer perceptrons in compiled code, and the search that never leaves it.

Weights, biases and activations are flat float32 arrays; `perceptron_layout` lays them out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, store
from rl_training.kernels.search.evaluated_states import States, root_state, state_after
from rl_training.kernels.search.network_outputs import expectation, step_cell
from rl_training.kernels.search.perceptron_layout import IDENTITY, PackedMLP, Scratch
from rl_training.kernels.search.products import multiply
from rl_training.kernels.search.row_functions import activate, add_row, normalize, rescale
from rl_training.search.compilation import compiled, part
from rl_training.search.growth import grow, select
from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree, leaves_of, trees_of


@part()
def product(layer: Any, rows: int, some: int, weights: np.ndarray, activations: np.ndarray) -> None:
    """Multiply the first `some` of the rows of a layer's input with its weight and add its bias."""
    source, target = layer.source * rows, layer.target * rows
    multiply(
        some,
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
def run_layers(network: PackedMLP, first: int, last: int, rows: int, going: int, scratch: Scratch) -> None:
    """Run the layers from `first` to before `last`; the recurrent cells are empty but for the first `going` rows."""
    weights, activations = network.weights, scratch.activations
    for number in range(first, last):
        layer = network.layers[number]
        width, outputs = layer.width, layer.outputs
        if network.cell >= 0 and number == network.cell + 1:
            product(layer, rows, going, weights, activations)
            for row in range(going, rows):
                copy_row(weights, layer.bias, activations, layer.target * rows + row * outputs, outputs)
            step_cells(network, rows, activations)
            continue
        product(layer, rows, rows, weights, activations)
        # Compiled code would read a record again after every number that it writes.
        target, norm, activation, added = layer.target * rows, layer.norm, layer.activation, layer.action_rows
        residual, scaled = layer.residual != 0, layer.rescale != 0
        if activation == IDENTITY and norm < 0 and added < 0 and not residual and not scaled:
            continue
        for row in range(rows):
            start = target + row * outputs
            if added >= 0:
                add_row(activations, start, weights, added + scratch.actions[row] * width, width)
            if norm >= 0:
                normalize(activations, start, width, weights, norm, norm + width)
            activate(activations, start, width, activation)
            if residual:
                add_row(activations, start, activations, row * network.latent_stride, width)
            if scaled:
                rescale(activations, start, width)


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
def copy_row(source: np.ndarray, at: int, target: np.ndarray, to: int, width: int) -> None:
    """Copy a row of whole lanes."""
    for index in range(0, width, LANES):
        store(target, to + index, load(source, at + index))


@part()
def read_policy(network: PackedMLP, activations: np.ndarray, row: int, rows: int, logits: np.ndarray, to: int) -> None:
    """Write a row's policy logits."""
    policy = network.layers[network.policy]
    start = policy.target * rows + row * policy.outputs + network.policy_from
    for index in range(network.actions):
        logits[to + index] = activations[start + index]


@part()
def read_scalar(network: PackedMLP, index: int, width: int, activations: np.ndarray, row: int, rows: int) -> np.float32:
    """Return the number that the first `width` outputs of a layer stand for."""
    layer = network.layers[index]
    start = layer.target * rows + row * layer.outputs
    if width == 1:
        return activations[start]
    return np.float32(expectation(activations, start, width))


@compiled
def predict_mlp(
    network: PackedMLP,
    features: np.ndarray,
    latents: np.ndarray,
    values: np.ndarray,
    logits: np.ndarray,
    scratch: Scratch,
    together: int,
) -> None:
    """Write the latents [B, latent] of features [B, ...], their values [B] and policies [B * A].

    So many rows are taken at a time. Where the network does not represent observations, the latents are given.
    """
    layer, activations = network.layers[network.latent], scratch.activations
    for first in range(0, len(latents), together):
        rows = min(len(latents) - first, together)
        if network.represented > 0:
            encode(network, features, latents, first, rows, scratch)
        for row in range(rows):
            start = layer.target * rows + row * layer.outputs
            for index in range(layer.width):
                activations[start + index] = latents[first + row, index]
        run_layers(network, network.latent + 1, network.policy + 1, rows, 0, scratch)
        for row in range(rows):
            read_policy(network, activations, row, rows, logits, (first + row) * network.actions)
            values[first + row] = read_scalar(network, network.value, network.atoms, activations, row, rows)


@part()
def encode(
    network: PackedMLP, features: np.ndarray, latents: np.ndarray, first: int, rows: int, scratch: Scratch
) -> None:
    """Write the latents of features from the row `first` on."""
    activations, source = scratch.activations, network.layers[0]
    for row in range(rows):
        start = source.source * rows + row * source.stride
        for index in range(source.inputs):
            activations[start + index] = features[first + row, index]
    run_layers(network, 0, network.represented, rows, 0, scratch)
    target = network.layers[network.represented - 1]
    for row in range(rows):
        start = target.target * rows + row * target.outputs
        for index in range(target.width):
            latents[first + row, index] = activations[start + index]


@part()
def gather(network: PackedMLP, states: States, first: int, rows: int, scratch: Scratch) -> int:
    """Write what the new states from `first` on go on from; return how many rows have a cell that is not empty.

    Those are the first rows: the others need no product with the cell's state.
    """
    activations, stride, cell = scratch.activations, network.latent_stride, network.cell_stride
    outputs = network.cell_before * rows
    memories = outputs + rows * cell
    going, empty = 0, rows
    for number in range(first, first + rows):
        above = np.int64(states.states[number].parent)
        if network.cell >= 0 and states.states[above].depth > 0:
            row = going
            going += 1
            copy_row(states.cells, 2 * above * cell, activations, outputs + row * cell, cell)
            copy_row(states.cells, (2 * above + 1) * cell, activations, memories + row * cell, cell)
        else:
            empty -= 1
            row = empty
            for index in range(memories + row * cell, memories + (row + 1) * cell):
                activations[index] = 0.0
        copy_row(states.latents, above * stride, activations, row * stride, stride)
        scratch.order[row] = number
        scratch.actions[row] = states.states[number].action
    return going


@part()
def evaluate(network: PackedMLP, states: States, first: int, rows: int, scratch: Scratch) -> None:
    """Evaluate the new states from `first` on."""
    going = gather(network, states, first, rows, scratch)
    run_layers(network, network.represented, len(network.layers), rows, going, scratch)
    activations, stride, cell = scratch.activations, network.latent_stride, network.cell_stride
    latent, after = network.layers[network.latent].target * rows, network.cell_after * rows
    rewards = network.layers[network.reward].width
    for row in range(rows):
        number = scratch.order[row]
        state = states.states[number]
        above = states.states[state.parent]
        read_policy(network, activations, row, rows, states.logits, number * network.actions)
        state.value = read_scalar(network, network.value, network.atoms, activations, row, rows)
        told = read_scalar(network, network.reward, rewards, activations, row, rows)
        state.reward = told - above.prefix
        state.discount = network.constant_discount
        if network.discount >= 0:
            width = network.layers[network.discount].width
            state.discount = read_scalar(network, network.discount, width, activations, row, rows)
        copy_row(activations, latent + row * stride, states.latents, number * stride, stride)
        depth = above.depth + np.float32(1.0)
        if depth < network.horizon:
            copy_row(activations, after + row * cell, states.cells, 2 * number * cell, cell)
            copy_row(activations, after + (rows + row) * cell, states.cells, (2 * number + 1) * cell, cell)
            state.prefix, state.depth = told, depth
        else:  # the cell starts anew
            state.prefix = state.depth = np.float32(0.0)


@part()
def grow_trees(
    rule: Rule, tree: Tree, network: PackedMLP, leaves: Leaves, places: np.ndarray, states: States, scratch: Scratch
) -> None:
    """Run all simulations of some trees, whose nodes [B, N] are the states at `places`."""
    batch, nodes = tree.nodes.shape
    for node in range(1, nodes):
        select(rule, tree, node - 1, leaves)
        known = states.counts[0]
        for root in range(batch):
            above = places[root, leaves.parents[root] - root * nodes]
            places[root, node] = state_after(network, states, above, leaves.actions[root])
        new = states.counts[0] - known
        groups = max((new + len(scratch.order) - 1) // len(scratch.order), 1)
        together = max((new + groups - 1) // groups, 1)
        for first in range(0, new, together):
            evaluate(network, states, known + first, min(together, new - first), scratch)
        for root in range(batch):
            number = places[root, node]
            state = states.states[number]
            leaves.values[root], leaves.rewards[root] = state.value, state.reward
            leaves.discounts[root] = state.discount
            for action in range(network.actions):
                leaves.logits[root, action] = states.logits[number * network.actions + action]
        grow(tree, node, leaves)


@compiled
def search_mlp(
    rule: Rule,
    tree: Tree,
    network: PackedMLP,
    leaves: Leaves,
    roots: np.ndarray,
    bits: np.ndarray,
    places: np.ndarray,
    states: States,
    scratch: Scratch,
    together: int,
    overwrite: bool,
) -> None:
    """Run a whole search from latents [B, latent], whose bits are given as integers, so many trees at a time.

    Which state each node is gets written to `places` [B, N]. With `overwrite` the states of some trees overwrite those
    of the trees before.
    """
    batch = len(tree.nodes)
    for first in range(0, batch, together):
        last = min(first + together, batch)
        if overwrite:
            states.counts[0] = 0
        for root in range(first, last):
            places[root, 0] = root_state(network, states, roots, bits, root)
        grow_trees(
            rule,
            trees_of(tree, first, last),
            network,
            leaves_of(leaves, first, last),
            places[first:last],
            states,
            scratch,
        )
