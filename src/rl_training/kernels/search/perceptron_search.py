"""Multi-layer perceptrons in compiled code, and the search that never leaves it.

Weights, biases and activations are flat float32 arrays; `mlp` lays them out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, multiply_add, store
from rl_training.kernels.search.perceptron_model import ELU, GELU, RELU, SILU, TANH, TILE, PackedMLP
from rl_training.search.compilation import compiled, part
from rl_training.search.growth import grow, select
from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree

# Sums may be taken in any order; infinities and NaN keep their meaning.
ANY_ORDER = {"reassoc", "contract", "nsz"}
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_FRACTION = np.int32(2**31 - 1)  # all bits but the sign


@part(fastmath={"contract"})
def exponential(x: np.float32) -> np.float32:
    """Return e**x of a float32 to float32's precision, by arithmetic that vectorises; below e**-87 it stays there."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    power = np.floor(x * _LOG2_E + np.float32(0.5))
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
    # Taylor coefficients: within half a power of two the first term left out is below 1e-7.
    series = np.float32(1 / 5040)
    series = series * rest + np.float32(1 / 720)
    series = series * rest + np.float32(1 / 120)
    series = series * rest + np.float32(1 / 24)
    series = series * rest + np.float32(1 / 6)
    series = series * rest + np.float32(0.5)
    series = series * rest + np.float32(1.0)
    series = series * rest + np.float32(1.0)
    # A float's exponent stands above its 23 bits of fraction, 127 meaning 2**0.
    return series * np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)


@part()
def largest(values: np.ndarray) -> np.float32:
    """Return the largest float32, or NaN where there is one.

    Compared as integers, which vectorises: of positive floats the bits are in order already, of negative ones reversed.
    """
    bits = values.view(np.int32)
    top = np.int32(-(2**31))
    for index in range(len(bits)):
        top = max(top, np.int32(bits[index] ^ ((bits[index] >> np.int32(31)) & _FRACTION)))
    return np.int32(top ^ ((top >> np.int32(31)) & _FRACTION)).view(np.float32)


@part(fastmath=ANY_ORDER)
def expectation(logits: np.ndarray) -> float:
    """Return the scalar that logits over the integers -S..S stand for: their mean, then the inverse transform."""
    top = largest(logits)
    total = np.float32(0.0)
    weighted = np.float32(0.0)
    first = np.float32(-(len(logits) // 2))
    for index in range(len(logits)):
        weight = exponential(logits[index] - top)
        total += weight
        weighted += weight * (first + np.float32(np.int32(index)))
    mean = weighted / total
    # The inverse of sign(x)(sqrt(|x|+1)-1) + 0.001x, in the form that subtracts no nearly equal numbers.
    shifted = abs(mean) + 1.001
    root = 2.0 * shifted / (math.sqrt(1.0 + 0.004 * shifted) + 1.0)
    return math.copysign(root * root - 1.0, mean)


@part()
def four_rows(
    activations: np.ndarray,
    at: int,
    stride: int,
    to: int,
    outputs: int,
    weights: np.ndarray,
    weight: int,
    bias: int,
    inputs: int,
) -> None:
    """Multiply four rows with TILE columns of a weight: eight sums of LANES numbers stay in registers."""
    low0 = low1 = low2 = low3 = load(weights, bias)
    high0 = high1 = high2 = high3 = load(weights, bias + LANES)
    for k in range(inputs):
        low, high = load(weights, weight + TILE * k), load(weights, weight + TILE * k + LANES)
        x0, x1 = activations[at + k], activations[at + stride + k]
        x2, x3 = activations[at + 2 * stride + k], activations[at + 3 * stride + k]
        low0, high0 = multiply_add(x0, low, low0), multiply_add(x0, high, high0)
        low1, high1 = multiply_add(x1, low, low1), multiply_add(x1, high, high1)
        low2, high2 = multiply_add(x2, low, low2), multiply_add(x2, high, high2)
        low3, high3 = multiply_add(x3, low, low3), multiply_add(x3, high, high3)
    store(activations, to, low0)
    store(activations, to + LANES, high0)
    store(activations, to + outputs, low1)
    store(activations, to + outputs + LANES, high1)
    store(activations, to + 2 * outputs, low2)
    store(activations, to + 2 * outputs + LANES, high2)
    store(activations, to + 3 * outputs, low3)
    store(activations, to + 3 * outputs + LANES, high3)


@part()
def one_row(
    activations: np.ndarray,
    at: int,
    to: int,
    outputs: int,
    weights: np.ndarray,
    weight: int,
    bias: int,
    inputs: int,
) -> None:
    """Multiply one row with the whole weight, two tiles at a time: more sums at once hide the latency of each."""
    column = 0
    while column + 2 * TILE <= outputs:
        first, second = weight + column * inputs, weight + (column + TILE) * inputs
        low0, high0 = load(weights, bias + column), load(weights, bias + column + LANES)
        low1, high1 = load(weights, bias + column + TILE), load(weights, bias + column + TILE + LANES)
        for k in range(inputs):
            x = activations[at + k]
            low0 = multiply_add(x, load(weights, first + TILE * k), low0)
            high0 = multiply_add(x, load(weights, first + TILE * k + LANES), high0)
            low1 = multiply_add(x, load(weights, second + TILE * k), low1)
            high1 = multiply_add(x, load(weights, second + TILE * k + LANES), high1)
        store(activations, to + column, low0)
        store(activations, to + column + LANES, high0)
        store(activations, to + column + TILE, low1)
        store(activations, to + column + TILE + LANES, high1)
        column += 2 * TILE
    if column < outputs:
        first = weight + column * inputs
        low0, high0 = load(weights, bias + column), load(weights, bias + column + LANES)
        for k in range(inputs):
            low0 = multiply_add(activations[at + k], load(weights, first + TILE * k), low0)
            high0 = multiply_add(activations[at + k], load(weights, first + TILE * k + LANES), high0)
        store(activations, to + column, low0)
        store(activations, to + column + LANES, high0)


@part()
def multiply(
    rows: int,
    activations: np.ndarray,
    source: int,
    stride: int,
    target: int,
    outputs: int,
    weights: np.ndarray,
    weight: int,
    bias: int,
    inputs: int,
) -> None:
    """Write the rows at `source` times a weight [outputs / TILE, inputs, TILE], plus its bias [outputs], to `target`.

    A row's sums are taken in the same order however many rows there are.
    """
    together = rows - rows % 4
    for column in range(0, outputs, TILE):
        for row in range(0, together, 4):
            at, to = source + row * stride, target + row * outputs + column
            four_rows(activations, at, stride, to, outputs, weights, weight + column * inputs, bias + column, inputs)
    for row in range(together, rows):
        one_row(activations, source + row * stride, target + row * outputs, outputs, weights, weight, bias, inputs)


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
def infer(network: PackedMLP, leaves: Leaves, activations: np.ndarray) -> None:
    """Run all layers for the latents at the beginning of `activations`, and write what they say into `leaves`."""
    rows = len(leaves.actions)
    weights = network.weights
    for number in range(len(network.layers)):
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
    for row in range(rows):
        leaves.rewards[row] = _scalar(network, network.reward, activations, row, rows)
        leaves.values[row] = _scalar(network, network.value, activations, row, rows)
        leaves.discounts[row] = network.constant_discount
        if network.discount >= 0:
            leaves.discounts[row] = _scalar(network, network.discount, activations, row, rows)
        policy = network.layers[network.policy]
        start = policy.target * rows + row * policy.outputs
        for index in range(policy.width):
            leaves.logits[row, index] = activations[start + index]


@part()
def _scalar(network: PackedMLP, index: int, activations: np.ndarray, row: int, rows: int) -> float:
    layer = network.layers[index]
    start = layer.target * rows + row * layer.outputs
    if layer.width == 1:
        return float(activations[start])
    return expectation(activations[start : start + layer.width])


@compiled
def search_mlp(
    rule: Rule, tree: Tree, network: PackedMLP, leaves: Leaves, latents: np.ndarray, activations: np.ndarray
) -> None:
    """Run a whole search: `latents` [B * N, stride] holds those of the roots, `activations` is scratch memory."""
    batch, nodes = tree.nodes.shape
    stride = network.latent_stride
    latent = network.layers[network.latent].target * batch
    for node in range(1, nodes):
        select(rule, tree, node - 1, leaves)
        for root in range(batch):
            for index in range(stride):
                activations[root * stride + index] = latents[leaves.parents[root], index]
        infer(network, leaves, activations)
        for root in range(batch):
            for index in range(stride):
                latents[root * nodes + node, index] = activations[latent + root * stride + index]
        grow(tree, node, leaves)
