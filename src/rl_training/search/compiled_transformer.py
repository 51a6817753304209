"""World transformers in compiled code, and the search that never leaves it.

All rows of a batch read one token at a time; a token's intermediate results stand in the activations by `Columns`.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.search.compiled_mlp import ANY_ORDER, activate, expectation, exponential, multiply, normalize
from rl_training.search.compiled_parts import entry, part
from rl_training.search.compiled_tree import grow, select
from rl_training.search.mlp import RELU
from rl_training.search.rules import Rule
from rl_training.search.transformer import PackedTransformer, Workspace
from rl_training.search.tree import Leaves, Tree

ACTION, LATENT = 0, 1  # a node's tokens


@entry
def apply(
    network: PackedTransformer, number: int, rows: int, source: int, stride: int, target: int, activations: np.ndarray
) -> None:
    """Write a linear layer's outputs for the rows at `source`."""
    layer = network.linears[number]
    multiply(
        rows,
        activations,
        source,
        stride,
        target,
        layer.outputs,
        network.weights,
        layer.weight,
        layer.bias,
        layer.inputs,
    )


@part()
def perceive(
    network: PackedTransformer, number: int, rows: int, source: int, stride: int, target: int, activations: np.ndarray
) -> None:
    """Write a linear layer's outputs, the negative ones as 0."""
    apply(network, number, rows, source, stride, target, activations)
    activate(activations[target : target + rows * network.linears[number].outputs], RELU)


@part()
def norm_rows(network: PackedTransformer, norm: int, rows: int, activations: np.ndarray) -> None:
    """Write every row of `hidden`, normalised, to `normed`."""
    width = network.width
    gain, shift = network.weights[norm : norm + width], network.weights[norm + width : norm + 2 * width]
    for row in range(rows):
        source = network.columns.hidden * rows + row * network.stride
        target = network.columns.normed * rows + row * network.stride
        normed = activations[target : target + width]
        copy(activations[source:], normed)
        normalize(normed, gain, shift)


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
def inner_product(one: np.ndarray, other: np.ndarray) -> float:
    """Return the sum of products."""
    total = np.float32(0.0)
    for index in range(len(one)):
        total += one[index] * other[index]
    return total


@part()
def softmax(values: np.ndarray) -> None:
    """Make numbers a distribution, in place."""
    top = values[0]
    for index in range(1, len(values)):
        top = max(top, values[index])
    total = np.float32(0.0)
    for index in range(len(values)):
        values[index] = exponential(values[index] - top)
        total += values[index]
    for index in range(len(values)):
        values[index] /= total


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
def ask_experts(network: PackedTransformer, number: int, rows: int, workspace: Workspace) -> None:
    """Add to `hidden` what the experts answer to `normed`: the shared one, and each about the rows that chose it."""
    activations, group = workspace.activations, workspace.group
    columns, width, stride, experts = network.columns, network.width, network.stride, network.experts
    hidden, normed, gates = columns.hidden * rows, columns.normed * rows, columns.gates * rows
    gathered, inner, answer = columns.gathered * rows, columns.inner * rows, columns.answer * rows
    block = network.blocks[number]
    shared = block.experts + 2 * experts
    perceive(network, shared, rows, normed, stride, inner, activations)
    apply(network, shared + 1, rows, inner, network.linears[shared].outputs, answer, activations)
    add_scaled(activations[hidden : hidden + rows * stride], np.float32(1.0), activations[answer:])
    if experts == 0:
        return
    per_row = network.linears[block.router].outputs
    apply(network, block.router, rows, normed, stride, gates, activations)
    for row in range(rows):
        choose(activations[gates + row * per_row : gates + row * per_row + experts], network.top_k)
    for expert in range(experts):
        count = 0
        for row in range(rows):
            if activations[gates + row * per_row + expert] > 0:
                source, target = normed + row * stride, gathered + count * stride
                copy(activations[source:], activations[target : target + width])
                group[count] = row
                count += 1
        first = block.experts + 2 * expert
        perceive(network, first, count, gathered, stride, inner, activations)
        apply(network, first + 1, count, inner, network.linears[first].outputs, answer, activations)
        for member in range(count):
            gate = activations[gates + group[member] * per_row + expert]
            target, source = hidden + group[member] * stride, answer + member * stride
            add_scaled(activations[target : target + width], gate, activations[source : source + width])


@entry
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
        apply(
            network,
            block.attention_input,
            rows,
            columns.normed * rows,
            stride,
            columns.projected * rows,
            activations,
        )
        attend(network, number, rows, workspace)
        apply(network, block.attention_output, rows, columns.attended * rows, stride, answer, activations)
        add_scaled(activations[hidden : hidden + rows * stride], np.float32(1.0), activations[answer:])
        norm_rows(network, block.experts_norm, rows, activations)
        ask_experts(network, number, rows, workspace)
    norm_rows(network, network.norm, rows, activations)


@part()
def imagine(network: PackedTransformer, spans: np.ndarray, leaves: Leaves, activations: np.ndarray) -> None:
    """Read rewards and, into `hidden`, the next latents from the outputs for actions."""
    rows, columns, stride = len(leaves.actions), network.columns, network.stride
    inner, answer = columns.inner * rows, columns.answer * rows
    for span in range(len(spans)):
        task, first, count = network.tasks[spans[span, 0]], spans[span, 1], spans[span, 2] - spans[span, 1]
        features = network.linears[task.step_trunk].outputs
        perceive(network, task.step_trunk, count, columns.normed * rows + first * stride, stride, inner, activations)
        reward = network.linears[task.reward]
        apply(network, task.reward, count, inner, features, answer, activations)
        for row in range(count):
            start = answer + row * reward.outputs
            leaves.rewards[first + row] = expectation(activations[start : start + reward.width])
        hidden = columns.hidden * rows + first * stride
        apply(network, task.latent, count, inner, features, hidden, activations)
        for row in range(count):
            for column in range(0, network.width, network.group):
                start = hidden + row * stride + column
                softmax(activations[start : start + network.group])


@entry
def predict(network: PackedTransformer, spans: np.ndarray, leaves: Leaves, activations: np.ndarray) -> None:
    """Read policies and values from the outputs for latents."""
    rows, columns, stride = len(leaves.actions), network.columns, network.stride
    inner, answer = columns.inner * rows, columns.answer * rows
    for span in range(len(spans)):
        task, first, count = network.tasks[spans[span, 0]], spans[span, 1], spans[span, 2] - spans[span, 1]
        features = network.linears[task.state_trunk].outputs
        perceive(network, task.state_trunk, count, columns.normed * rows + first * stride, stride, inner, activations)
        value = network.linears[task.value]
        apply(network, task.value, count, inner, features, answer, activations)
        for row in range(count):
            start = answer + row * value.outputs
            leaves.values[first + row] = expectation(activations[start : start + value.width])
            leaves.discounts[first + row] = network.discount
        policy = network.linears[task.policy]
        apply(network, task.policy, count, inner, features, answer, activations)
        for row in range(count):
            logits = leaves.logits[first + row]
            fill(logits, np.float32(-np.inf))
            for action in range(task.actions):
                logits[action] = activations[answer + row * policy.outputs + action]


@entry
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


@entry
def expand(
    network: PackedTransformer, spans: np.ndarray, tree: Tree, node: int, leaves: Leaves, workspace: Workspace
) -> None:
    """Imagine the leaves' actions, and write what is to be said of the states they lead to."""
    batch, nodes = tree.nodes.shape
    node_size = len(network.blocks) * 4 * network.width
    begin_step(network, spans, tree, node, leaves, workspace)
    read_tokens(network, batch, workspace)
    imagine(network, spans, leaves, workspace.activations)
    for root in range(batch):
        place = (workspace.places[root] + 1) % network.window
        workspace.places[root] = place
        workspace.seen[root, place] = (root * nodes + node) * node_size + LATENT * 2 * network.width
    read_tokens(network, batch, workspace)
    predict(network, spans, leaves, workspace.activations)


@entry
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
