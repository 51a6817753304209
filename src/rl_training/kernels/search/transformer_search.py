"""World transformers in compiled code, and the search that never leaves it.

All rows of a batch read one token at a time; a token's intermediate results stand in the activations by `Columns`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.kernels.compiled.planning.exponentials import exponential
from rl_training.kernels.search.network_outputs import expectation
from rl_training.kernels.search.perceptron_layout import RELU
from rl_training.kernels.search.products import multiply
from rl_training.kernels.search.row_functions import ANY_ORDER, activate, normalize
from rl_training.kernels.search.transformer_model import PackedTransformer, Workspace
from rl_training.search.compilation import compiled, part
from rl_training.search.growth import grow, select
from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree

ACTION, LATENT = 0, 1  # a node's tokens


@part()
def apply(
    layer: Any, rows: int, source: int, stride: int, target: int, weights: np.ndarray, activations: np.ndarray
) -> None:
    """Write a linear layer's outputs for the rows at `source`."""
    multiply(
        rows,
        activations,
        source,
        stride,
        target,
        layer.outputs,
        weights,
        layer.weight,
        layer.bias,
        layer.inputs,
    )


@part()
def norm_rows(network: PackedTransformer, norm: int, rows: int, activations: np.ndarray) -> None:
    """Write every row of `hidden`, normalised, to `normed`."""
    width = network.width
    for row in range(rows):
        source = network.columns.hidden * rows + row * network.stride
        target = network.columns.normed * rows + row * network.stride
        copy(activations[source:], activations[target : target + width])
        normalize(activations, target, width, network.weights, norm, norm + width)


@part()
def fill(target: np.ndarray, value: float) -> None:
    """Write one number everywhere."""
    for index in range(len(target)):
        target[index] = value


@part()
def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Write as many numbers as the target holds."""
    for index in range(len(target)):
        target[index] = source[index]


@part(fastmath=ANY_ORDER)
def add_scaled(target: np.ndarray, factor: float, values: np.ndarray) -> None:
    """Add a multiple of values to others."""
    for index in range(len(target)):
        target[index] += factor * values[index]


@part(fastmath=ANY_ORDER)
def inner_product(one: np.ndarray, other: np.ndarray) -> np.float32:
    """Return the sum of products."""
    total = np.float32(0.0)
    for index in range(len(one)):
        total += one[index] * other[index]
    return total


@part(fastmath=ANY_ORDER)
def softmax(values: np.ndarray) -> None:
    """Make numbers a distribution, in place."""
    top = values[0]
    for index in range(1, len(values)):
        top = max(top, values[index])
    total = np.float32(0.0)
    for index in range(len(values)):
        values[index] = exponential(values[index] - top)
        total += values[index]
    share = np.float32(1.0) / total
    for index in range(len(values)):
        values[index] *= share


@part()
def attend(network: PackedTransformer, number: int, rows: int, workspace: Workspace) -> None:
    """Remember the keys and values of a layer's tokens, and write what these attend to."""
    activations, memory = workspace.activations, workspace.memory
    width, size = network.width, network.width // network.heads
    scale = np.float32(1.0 / math.sqrt(size))
    per_row = network.linears[network.blocks[number].attention_input].outputs
    for row in range(rows):
        projected = network.columns.projected * rows + row * per_row
        attended = network.columns.attended * rows + row * network.stride
        place, seen = workspace.places[row], workspace.seen[row]
        remembered = seen[place] + number * 4 * width
        copy(activations[projected + width :], memory[remembered : remembered + 2 * width])
        scores = activations[network.columns.scores * rows : network.columns.scores * rows + place + 1]
        for head in range(0, width, size):
            query = activations[projected + head : projected + head + size]
            for other in range(place + 1):
                key = seen[other] + number * 4 * width + head
                scores[other] = inner_product(query, memory[key : key + size]) * scale
            softmax(scores)
            answer = activations[attended + head : attended + head + size]
            fill(answer, np.float32(0.0))
            for other in range(place + 1):
                value = seen[other] + number * 4 * width + width + head
                add_scaled(answer, scores[other], memory[value : value + size])


@part()
def choose(gates: np.ndarray, top_k: int) -> None:
    """Turn a router's logits into the chosen experts' probabilities and 0 for others; of equals the first wins."""
    softmax(gates)
    for _ in range(top_k):
        best = -1
        for expert in range(len(gates)):
            if gates[expert] >= 0 and (best < 0 or gates[expert] > gates[best]):
                best = expert
        gates[best] = -gates[best]  # marks it
    for expert in range(len(gates)):
        gates[expert] = max(-gates[expert], np.float32(0.0))


@part()
def gather(network: PackedTransformer, expert: int, rows: int, per_row: int, workspace: Workspace) -> int:
    """Copy the rows of `normed` that chose an expert one after the other, list them, and return how many they are."""
    columns, stride, activations = network.columns, network.stride, workspace.activations
    count = 0
    for row in range(rows):
        # The last expert is asked about every row.
        if expert == network.experts or activations[columns.gates * rows + row * per_row + expert] > 0:
            source, target = columns.normed * rows + row * stride, columns.gathered * rows + count * stride
            copy(activations[source:], activations[target : target + network.width])
            workspace.group[count] = row
            count += 1
    return count


@part()
def ask_experts(network: PackedTransformer, number: int, rows: int, workspace: Workspace) -> None:
    """Add to `hidden` what the experts answer to `normed`, each about the rows that chose it."""
    activations, weights, linears = workspace.activations, network.weights, network.linears
    columns, width, stride, experts = network.columns, network.width, network.stride, network.experts
    hidden, gates, gathered = columns.hidden * rows, columns.gates * rows, columns.gathered * rows
    inner, answer = columns.inner * rows, columns.answer * rows
    block, per_row = network.blocks[number], 0
    if experts > 0:
        per_row = linears[block.router].outputs
        apply(linears[block.router], rows, columns.normed * rows, stride, gates, weights, activations)
        for row in range(rows):
            choose(activations[gates + row * per_row : gates + row * per_row + experts], network.top_k)
    for expert in range(experts + 1):
        count = gather(network, expert, rows, per_row, workspace)
        first, second = linears[block.experts + 2 * expert], linears[block.experts + 2 * expert + 1]
        apply(first, count, gathered, stride, inner, weights, activations)
        activate(activations, inner, count * first.outputs, RELU)
        apply(second, count, inner, first.outputs, answer, weights, activations)
        for member in range(count):
            row = workspace.group[member]
            gate = np.float32(1.0) if expert == experts else activations[gates + row * per_row + expert]
            target, source = hidden + row * stride, answer + member * stride
            add_scaled(activations[target : target + width], gate, activations[source : source + width])


@part()
def read_tokens(network: PackedTransformer, rows: int, workspace: Workspace) -> None:
    """Read one token per row, which stands in `hidden`, and leave the outputs in `normed`."""
    activations, columns, stride = workspace.activations, network.columns, network.stride
    hidden, answer = columns.hidden * rows, columns.answer * rows
    for row in range(rows):
        target, source = hidden + row * stride, network.positions + workspace.places[row] * network.width
        add_scaled(activations[target : target + network.width], np.float32(1.0), network.weights[source:])
    for number in range(len(network.blocks)):
        block = network.blocks[number]
        norm_rows(network, block.attention_norm, rows, activations)
        projection = network.linears[block.attention_input]
        apply(projection, rows, columns.normed * rows, stride, columns.projected * rows, network.weights, activations)
        attend(network, number, rows, workspace)
        mix = network.linears[block.attention_output]
        apply(mix, rows, columns.attended * rows, stride, answer, network.weights, activations)
        add_scaled(activations[hidden : hidden + rows * stride], np.float32(1.0), activations[answer:])
        norm_rows(network, block.experts_norm, rows, activations)
        ask_experts(network, number, rows, workspace)
    norm_rows(network, network.norm, rows, activations)


@part()
def ask_heads(
    network: PackedTransformer, heads: int, first: int, count: int, scalars: np.ndarray, activations: np.ndarray
) -> None:
    """Ask a trunk and its two heads about some rows of `normed`: scalars are written, vectors stay in `answer`."""
    rows, columns, weights = len(scalars), network.columns, network.weights
    trunk, scalar, vector = network.linears[heads], network.linears[heads + 1], network.linears[heads + 2]
    source, inner, answer = columns.normed * rows + first * network.stride, columns.inner * rows, columns.answer * rows
    apply(trunk, count, source, network.stride, inner, weights, activations)
    activate(activations, inner, count * trunk.outputs, RELU)
    apply(scalar, count, inner, trunk.outputs, answer, weights, activations)
    for row in range(count):
        start = answer + row * scalar.outputs
        scalars[first + row] = expectation(activations, start, scalar.width)
    apply(vector, count, inner, trunk.outputs, answer, weights, activations)


@part()
def imagine(network: PackedTransformer, spans: np.ndarray, rewards: np.ndarray, activations: np.ndarray) -> None:
    """Read rewards and, into `hidden`, the next latents from the outputs for actions."""
    rows, width = len(rewards), network.width
    for span in range(len(spans)):
        task, first, count = network.tasks[spans[span, 0]], spans[span, 1], spans[span, 2] - spans[span, 1]
        ask_heads(network, task.step, first, count, rewards, activations)
        for row in range(count):
            source = network.columns.answer * rows + row * network.stride
            for column in range(0, width, network.group):
                softmax(activations[source + column : source + column + network.group])
            target = network.columns.hidden * rows + (first + row) * network.stride
            copy(activations[source:], activations[target : target + width])


@part()
def predict(network: PackedTransformer, spans: np.ndarray, leaves: Leaves, activations: np.ndarray) -> None:
    """Read policies and values from the outputs for latents."""
    rows = len(leaves.values)
    for span in range(len(spans)):
        task, first, count = network.tasks[spans[span, 0]], spans[span, 1], spans[span, 2] - spans[span, 1]
        ask_heads(network, task.state, first, count, leaves.values, activations)
        per_row = network.linears[task.state + 2].outputs
        for row in range(count):
            logits, source = leaves.logits[first + row], network.columns.answer * rows + row * per_row
            fill(logits, np.float32(-np.inf))
            copy(activations[source:], logits[: task.actions])
            leaves.discounts[first + row] = network.discount


@compiled
def read_roots(
    network: PackedTransformer, spans: np.ndarray, leaves: Leaves, workspace: Workspace, latents: np.ndarray
) -> None:
    """Read the roots' latents [B, width]: what is known of them goes to `leaves`, their memory to nodes of one tree."""
    width, node_size = network.width, len(network.blocks) * 4 * network.width
    for row in range(len(latents)):
        workspace.places[row] = 0
        workspace.seen[row, 0] = row * node_size + LATENT * 2 * width
        start = network.columns.hidden * len(latents) + row * network.stride
        copy(latents[row], workspace.activations[start : start + width])
    read_tokens(network, len(latents), workspace)
    predict(network, spans, leaves, workspace.activations)


@part()
def begin_step(
    network: PackedTransformer, spans: np.ndarray, tree: Tree, node: int, leaves: Leaves, workspace: Workspace
) -> None:
    """Put the tokens of the leaves' actions into `hidden`, and find what they see."""
    batch, nodes = tree.nodes.shape
    width, node_size = network.width, len(network.blocks) * 4 * network.width
    for root in range(batch):
        own, above = root * nodes + node, leaves.parents[root]
        depth = workspace.depths[above] + 1
        workspace.depths[own] = depth
        place = (2 * depth - 1) % network.window
        workspace.places[root] = place
        seen = workspace.seen[root]
        seen[place] = own * node_size + ACTION * 2 * width
        # Back from the latent before it, to the one that began the window.
        for other in range(place - 1, -1, -1):
            token = LATENT if other % 2 == 0 else ACTION
            seen[other] = above * node_size + token * 2 * width
            if token == ACTION:
                above = root * nodes + tree.nodes[root, above - root * nodes].parent
    for span in range(len(spans)):
        rows = network.tasks[spans[span, 0]].action_rows
        for root in range(spans[span, 1], spans[span, 2]):
            source, target = rows + leaves.actions[root] * width, network.columns.hidden * batch + root * network.stride
            copy(network.weights[source:], workspace.activations[target : target + width])


@part()
def expand(
    network: PackedTransformer, spans: np.ndarray, tree: Tree, node: int, leaves: Leaves, workspace: Workspace
) -> None:
    """Imagine the leaves' actions, and write what is to be said of the states they lead to."""
    batch, nodes = tree.nodes.shape
    node_size = len(network.blocks) * 4 * network.width
    begin_step(network, spans, tree, node, leaves, workspace)
    read_tokens(network, batch, workspace)
    imagine(network, spans, leaves.rewards, workspace.activations)
    for root in range(batch):
        place = (workspace.places[root] + 1) % network.window
        workspace.places[root] = place
        workspace.seen[root, place] = (root * nodes + node) * node_size + LATENT * 2 * network.width
    read_tokens(network, batch, workspace)
    predict(network, spans, leaves, workspace.activations)


@compiled
def search_transformer(
    rule: Rule, tree: Tree, network: PackedTransformer, spans: np.ndarray, leaves: Leaves, workspace: Workspace
) -> None:
    """Run a whole search; the workspace holds what the roots remember."""
    batch, nodes = tree.nodes.shape
    for root in range(batch):
        workspace.depths[root * nodes] = 0
    for node in range(1, nodes):
        select(rule, tree, node - 1, leaves)
        expand(network, spans, tree, node, leaves, workspace)
        grow(tree, node, leaves)
