"""Products of layers skip zeros where there are many, and give what products of all elements give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.kernels.compiled.layers import (
    Scratch,
    bits_size,
    layer_backward,
    layer_forward,
    layer_gradient,
    panel_size,
    sparse,
)
from rl_training.kernels.layouts import zeros
from rl_training.search.compilation import compiled

INPUTS, OUTPUTS, RELU = 128, 192, 1


@compiled
def forward(x: Any, rows: int, flat: Any, place: Any, scratch: Any, out: Any) -> bool:
    layer_forward(x, 0, rows, INPUTS, flat, place, OUTPUTS, RELU, scratch, out, 0)
    return sparse(x, 0, rows, INPUTS, OUTPUTS, scratch)


@compiled
def backward(grad: Any, rows: int, flat: Any, place: Any, scratch: Any) -> bool:
    layer_backward(grad, 0, rows, OUTPUTS, flat, place, INPUTS, scratch, rows * OUTPUTS)
    return sparse(grad, 0, rows, OUTPUTS, INPUTS, scratch)


@compiled
def gradient(x: Any, rows: int, grad: Any, place: Any, add: bool, scratch: Any, out: Any) -> bool:
    layer_gradient(x, 0, rows, INPUTS, grad, 0, OUTPUTS, place, add, scratch, out)
    return sparse(x, 0, rows, INPUTS, OUTPUTS, scratch)


def in_blocks(matrix: np.ndarray, room: int = 0) -> np.ndarray:
    blocks = zeros(matrix.size + room)
    blocks[: matrix.size] = matrix.reshape(len(matrix), -1, 16).transpose(1, 0, 2).reshape(-1)
    return blocks


def from_blocks(blocks: np.ndarray, rows: int) -> np.ndarray:
    return blocks.reshape(-1, rows, 16).transpose(1, 0, 2).reshape(rows, -1)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("rows", [64, 100, 256])
@pytest.mark.parametrize("transposed", [False, True])
def test_layers_skip_zeros_where_there_are_many(share: float, rows: int, transposed: bool) -> None:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        kept = rng.random(shape) < share
        return np.where(kept, rng.normal(size=shape), 0.0).astype(np.float32)

    weight, bias = rng.normal(size=(INPUTS, OUTPUTS)).astype(np.float32), rng.normal(size=OUTPUTS).astype(np.float32)
    flat = np.concatenate([(weight.T if transposed else weight).reshape(-1), bias])
    apart = (1, INPUTS) if transposed else (OUTPUTS, 1)
    place = np.array([0, *apart, weight.size])
    scratch = Scratch(zeros(panel_size(OUTPUTS)), np.zeros(bits_size(rows, OUTPUTS), np.int64))
    x, grad_sums, out = draw(rows, INPUTS), draw(rows, OUTPUTS), zeros(rows * OUTPUTS)
    blocks = in_blocks(x)

    assert forward(blocks, rows, flat, place, scratch, out) == (share < 0.6)
    np.testing.assert_allclose(from_blocks(out, rows), np.maximum(x @ weight + bias, 0.0), rtol=1e-4, atol=1e-4)

    grad = in_blocks(grad_sums, rows * INPUTS)
    assert backward(grad, rows, flat, place, scratch) == (share < 0.6)
    found = from_blocks(grad[rows * OUTPUTS :], rows)
    np.testing.assert_allclose(found, grad_sums @ weight.T, rtol=1e-4, atol=1e-4)

    total = np.full(flat.size, 7.0, np.float32)
    expected = x.T @ grad_sums
    for times in (1, 2):  # written, then added
        assert gradient(blocks, rows, grad, place, times == 2, scratch, total) == (share < 0.6)
        shaped = total[: weight.size].reshape(weight.T.shape if transposed else weight.shape)
        np.testing.assert_allclose(shaped.T if transposed else shaped, times * expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(total[weight.size :], times * grad_sums.sum(axis=0), rtol=1e-4, atol=1e-4)
