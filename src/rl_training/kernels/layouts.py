"""Where the layers of torch modules lie in the flat memory of their optimizer, as compiled code takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.layers import MLP, StackedMLP, parameter_pairs

# The numbers of `kernels.compiled.perceptrons`.
ACTIVATIONS: dict[Callable[[Tensor], Tensor], int] = {torch.tanh: 0, torch.relu: 1}
_LINE = 16  # float32 numbers

Place = tuple[int, int, int, int]
"""Index of a weight, how far the weights of two inputs and of two outputs lie apart, and the index of the bias."""


def index_in(values: Tensor, parameter: Tensor) -> int:
    """Return where a parameter begins in the flat memory that it is a view of."""
    return (parameter.data_ptr() - values.data_ptr()) // values.element_size()


def stacked_places(values: Tensor, network: StackedMLP, member: int) -> list[Place]:
    """Return the places of one network of a stack, whose weights are [count, inputs, outputs]."""
    places = []
    for weight, bias in parameter_pairs(network):
        _, inputs, outputs = weight.shape
        first = index_in(values, weight) + member * inputs * outputs
        places.append((first, outputs, 1, index_in(values, bias) + member * outputs))
    return places


def mlp_places(values: Tensor, network: MLP) -> list[Place]:
    """Return the places of a perceptron, whose weights are [outputs, inputs]."""
    return [
        (index_in(values, weight), 1, int(weight.shape[1]), index_in(values, bias))
        for weight, bias in parameter_pairs(network)
    ]


def linear_place(values: Tensor, layer: nn.Linear) -> Place:
    """Return the place of a linear layer, whose weight is [outputs, inputs]."""
    return index_in(values, layer.weight), 1, layer.in_features, index_in(values, layer.bias)


def as_array(numbers: Iterable[object]) -> np.ndarray:
    """Return integers as compiled code takes them."""
    return np.array(list(numbers), np.int64)


def flat_array(tensor: Tensor) -> np.ndarray:
    """Return the elements in order; of contiguous tensors they share the memory."""
    return tensor.numpy().reshape(-1)


def zeros(size: int) -> np.ndarray:
    """Return float32 zeros that begin where a line of the cache begins: vectors across two lines take longer."""
    memory = np.zeros(size + _LINE, np.float32)
    first = -(memory.ctypes.data // memory.itemsize) % _LINE
    return memory[first : first + size]
