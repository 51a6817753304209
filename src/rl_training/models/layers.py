"""Layers whose initial weights come from a given generator, never from the global one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": nn.functional.elu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}


def initialize(weight: Tensor, bias: Tensor, *, orthogonal: bool, gain: float, generator: torch.Generator) -> None:
    """Fill a layer's weight [out, ...] and bias [out] in place.

    Orthogonal with zero bias, or uniform within 1/sqrt(fan_in), torch's default for linear and convolution layers.
    """
    with torch.no_grad():
        if orthogonal:
            nn.init.orthogonal_(weight, gain, generator=generator)
            bias.zero_()
        else:
            bound = 1 / math.sqrt(weight[0].numel())
            nn.init.uniform_(weight, -bound, bound, generator=generator)
            nn.init.uniform_(bias, -bound, bound, generator=generator)


def linear(
    inputs: int, outputs: int, *, orthogonal: bool, gain: float = math.sqrt(2), generator: torch.Generator
) -> nn.Linear:
    """Return an initialised linear layer."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    initialize(layer.weight, layer.bias, orthogonal=orthogonal, gain=gain, generator=generator)
    return layer


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    *,
    orthogonal: bool,
    gain: float = math.sqrt(2),
    generator: torch.Generator,
) -> nn.Conv2d:
    """Return an initialised 2-D convolution."""
    layer = nn.utils.skip_init(nn.Conv2d, inputs, outputs, kernel, stride=stride)
    assert layer.bias is not None
    initialize(layer.weight, layer.bias, orthogonal=orthogonal, gain=gain, generator=generator)
    return layer


class StackedMLP(nn.Module):
    """`count` multi-layer perceptrons of one shape, evaluated together by batched products.

    Small networks are bound by the number of operations, not by their arithmetic: two networks in one
    product cost little more than one.
    """

    def __init__(
        self,
        count: int,
        inputs: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        *,
        orthogonal: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.count = count
        self.outputs = hidden_sizes[-1] if hidden_sizes else inputs
        self.activation = ACTIVATIONS[activation]
        self.weights = nn.ParameterList()  # each [count, in, out]
        self.biases = nn.ParameterList()  # each [count, 1, out]
        for width in hidden_sizes:
            weight, bias = torch.empty(count, width, inputs), torch.empty(count, width)
            for network in range(count):
                initialize(
                    weight[network],
                    bias[network],
                    orthogonal=orthogonal,
                    gain=math.sqrt(2),
                    generator=generator,
                )
            self.weights.append(nn.Parameter(weight.transpose(1, 2).contiguous()))
            self.biases.append(nn.Parameter(bias.unsqueeze(1)))
            inputs = width

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, inputs], shared by all networks, to [count, B, outputs]."""
        hidden = features.expand(self.count, *features.shape)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = self.activation(torch.baddbmm(bias, hidden, weight))
        return hidden

    def one(self, network: int, features: Tensor) -> Tensor:
        """Map features [B, inputs] through a single network to [B, outputs]."""
        hidden = features
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = self.activation(torch.addmm(bias[network], hidden, weight[network]))
        return hidden
