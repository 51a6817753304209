"""Layers whose initial weights come from a given generator, never from the global one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": nn.functional.elu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}

# Turns gradients by an activation's output, given that output, into those by its input, in place.
SLOPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": lambda gradient, output: torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient),
    "relu": lambda gradient, output: torch.ops.aten.threshold_backward.grad_input(
        gradient, output, 0, grad_input=gradient
    ),
}
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh_, "relu": torch.relu_}


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


def parameter_pairs(module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Return weight and bias of each layer that a module registered itself, without the cost of containers."""
    parameters = iter(module._parameters.values())
    return zip(parameters, parameters, strict=True)  # type: ignore[arg-type]


def linear(
    inputs: int, outputs: int, *, orthogonal: bool, gain: float = math.sqrt(2), generator: torch.Generator
) -> nn.Linear:
    """Return an initialised linear layer."""
    with torch.random.fork_rng(devices=[]):  # torch's own initialisation, replaced below, leaves no trace
        layer = nn.Linear(inputs, outputs)
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
    with torch.random.fork_rng(devices=[]):
        layer = nn.Conv2d(inputs, outputs, kernel, stride=stride)
    assert layer.bias is not None
    initialize(layer.weight, layer.bias, orthogonal=orthogonal, gain=gain, generator=generator)
    return layer


def gradient_of(parameter: Tensor) -> Tensor:
    """Return where a parameter's gradient is written to; torch would take None for "nowhere" and say nothing."""
    assert parameter.grad is not None, "an optimizer must have taken the parameters over"
    return parameter.grad


def linear_backward(layer: nn.Linear, inputs: Tensor, gradient: Tensor, *, out: Tensor) -> None:
    """Overwrite a layer's gradients, given a loss's by its outputs [B, outputs]; put that by its inputs into `out`."""
    torch.mm(gradient.t(), inputs, out=gradient_of(layer.weight))
    torch.sum(gradient, 0, out=gradient_of(layer.bias))
    torch.mm(gradient, layer.weight, out=out)


class MLP(nn.Module):
    """Linear layers with an activation between them.

    The parameters are its own, without a module per layer: looking those up costs more than a small product.
    """

    def __init__(self, sizes: tuple[int, ...], activation: str, *, generator: torch.Generator) -> None:
        """`sizes` are the widths from the input to the output."""
        super().__init__()
        self.sizes = sizes
        self.activation = ACTIVATIONS[activation]
        self.activated = len(sizes) - 2
        for layer, (inputs, width) in enumerate(pairwise(sizes)):
            weight, bias = torch.empty(width, inputs), torch.empty(width)
            initialize(weight, bias, orthogonal=False, gain=math.sqrt(2), generator=generator)
            self.register_parameter(f"weight_{layer}", nn.Parameter(weight))
            self.register_parameter(f"bias_{layer}", nn.Parameter(bias))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [B, inputs] to [B, outputs]."""
        for layer, (weight, bias) in enumerate(parameter_pairs(self)):
            hidden = nn.functional.linear(hidden, weight, bias)
            if layer < self.activated:
                hidden = self.activation(hidden)
        return hidden


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
        outputs: int | None = None,
    ) -> None:
        """`outputs` adds a last layer of that width without activation."""
        super().__init__()
        widths = hidden_sizes if outputs is None else (*hidden_sizes, outputs)
        self.count = count
        self.outputs = widths[-1] if widths else inputs
        self.activated = len(hidden_sizes)
        self.activation = ACTIVATIONS[activation]
        self.slope = SLOPES.get(activation)
        self._activate_in_place = IN_PLACE.get(activation)
        self._rooms: tuple[list[Tensor], list[Tensor]] = [], []  # of every layer: outputs, gradients
        for layer, width in enumerate(widths):
            weight, bias = torch.empty(count, width, inputs), torch.empty(count, width)
            for network in range(count):
                initialize(
                    weight[network],
                    bias[network],
                    orthogonal=orthogonal,
                    gain=math.sqrt(2),
                    generator=generator,
                )
            # [count, in, out] and [count, 1, out], as batched products take them
            self.register_parameter(f"weight_{layer}", nn.Parameter(weight.transpose(1, 2).contiguous()))
            self.register_parameter(f"bias_{layer}", nn.Parameter(bias.unsqueeze(1)))
            inputs = width

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, inputs], shared by all networks, to [count, B, outputs]."""
        hidden = features.expand(self.count, *features.shape)
        for layer, (weight, bias) in enumerate(parameter_pairs(self)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if layer < self.activated:
                hidden = self.activation(hidden)
        return hidden

    def one(self, network: int, features: Tensor) -> Tensor:
        """Map features [B, inputs] through a single network to [B, outputs]."""
        hidden = features
        for layer, (weight, bias) in enumerate(parameter_pairs(self)):
            hidden = torch.addmm(bias[network], hidden, weight[network])
            if layer < self.activated:
                hidden = self.activation(hidden)
        return hidden

    def trace(self, features: Tensor, count: int | None = None) -> list[Tensor]:
        """Return the input and what every layer makes of it, [count, B, width] each; without autograd, for `backward`.

        `count` networks, the first ones, are asked; None asks all. The results lie in memory that the next trace
        overwrites: to get as much anew costs the system as long as a product.
        """
        assert self._activate_in_place is not None
        count, rows = count or self.count, len(features)
        hidden = features.expand(count, *features.shape)
        trace = [hidden]
        layers = self._layers(count)
        if not self._rooms[0] or self._rooms[0][0].shape[1] < rows:
            for rooms in self._rooms:
                rooms[:] = [hidden.new_empty(self.count, rows, bias.shape[2]) for _, bias in layers]
        for layer, (weight, bias) in enumerate(layers):
            hidden = torch.baddbmm(bias, hidden, weight, out=self._rooms[0][layer][:count, :rows])
            if layer < self.activated:
                self._activate_in_place(hidden)
            trace.append(hidden)
        return trace

    def room(self, output: Tensor) -> Tensor:
        """Return memory for the gradient by a traced output [count, B, outputs]."""
        return self._rooms[1][-1][:, : output.shape[1]] if self._rooms[1] else output.new_empty(output.shape)

    def backward(self, trace: list[Tensor], gradient: Tensor) -> None:
        """Overwrite the parameters' gradients, given a loss's gradient [count, B, outputs] by the traced output."""
        layers = list(parameter_pairs(self))
        for layer, by_sum in self._gradients(trace, gradient):
            weight, bias = layers[layer]
            torch.bmm(trace[layer].transpose(1, 2), by_sum, out=gradient_of(weight))
            torch.sum(by_sum, 1, keepdim=True, out=gradient_of(bias))

    def input_gradient(self, trace: list[Tensor], gradient: Tensor, first: int) -> Tensor:
        """Return a loss's gradient [B, inputs - first] by the inputs from `first` on, given that by the output."""
        *_, (_, by_sum) = self._gradients(trace, gradient)
        weight = self._layers(len(gradient))[0][0][:, first:]
        return torch.bmm(by_sum, weight.transpose(1, 2)).sum(0)

    def _gradients(self, trace: list[Tensor], gradient: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Go from the last layer to the first with the gradient by its sums, before the activation."""
        assert self.slope is not None
        layers = self._layers(len(gradient))
        for layer in range(len(layers) - 1, -1, -1):
            if layer < self.activated:
                gradient = self.slope(gradient, trace[layer + 1])
            yield layer, gradient
            if layer:
                room = self._rooms[1][layer - 1][: len(gradient), : gradient.shape[1]]
                gradient = torch.bmm(gradient, layers[layer][0].transpose(1, 2), out=room)

    def _layers(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return weights and biases of the first `count` networks."""
        layers = list(parameter_pairs(self))
        return layers if count == self.count else [(weight[:count], bias[:count]) for weight, bias in layers]
