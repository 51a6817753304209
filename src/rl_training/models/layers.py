"""Layers whose initial weights are drawn from a given generator, never from the global one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
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


@contextlib.contextmanager
def global_draws_from(generator: torch.Generator) -> Iterator[None]:
    """Seed torch's global generator from `generator` for the duration of the context, then restore it.

    The seed is drawn from a copy, so that `generator` itself gives the same numbers as without this context.
    """
    private = torch.Generator(generator.device)
    private.set_state(generator.get_state())
    seed = torch.randint(2**62, (), generator=private, device=private.device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))
        yield


def initialize(weight: Tensor, bias: Tensor, *, orthogonal: bool, gain: float, generator: torch.Generator) -> None:
    """Fill a layer's weight [out, ...] and bias [out] in place.

    Orthogonal with zero bias, or uniform within 1/sqrt(fan_in), the default of torch for linear and convolution layers.
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
    """Return weight and bias of each layer whose parameters a module registered itself."""
    parameters = iter(module._parameters.values())
    return zip(parameters, parameters, strict=True)  # type: ignore[arg-type]


def of_networks(pairs: Iterable[tuple[Tensor, Tensor]], networks: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Return pairs of stacked parameters [count, ...], or those of the chosen networks alone."""
    for pair in pairs:
        yield pair if networks is None else (pair[0][networks], pair[1][networks])


def linear(
    inputs: int, outputs: int, *, orthogonal: bool, gain: float = math.sqrt(2), generator: torch.Generator
) -> nn.Linear:
    """Return an initialised linear layer."""
    with torch.random.fork_rng(devices=[]):  # torch's own initialisation must not advance the global generator
        layer = nn.Linear(inputs, outputs)
    initialize(layer.weight, layer.bias, orthogonal=orthogonal, gain=gain, generator=generator)
    return layer


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    padding: int = 0,
    *,
    orthogonal: bool,
    gain: float = math.sqrt(2),
    generator: torch.Generator,
) -> nn.Conv2d:
    """Return an initialised 2-D convolution."""
    with torch.random.fork_rng(devices=[]):
        layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding)
    assert layer.bias is not None
    initialize(layer.weight, layer.bias, orthogonal=orthogonal, gain=gain, generator=generator)
    return layer


class MLP(nn.Module):
    """Linear layers with an activation between them.

    The parameters belong to this module itself: submodule lookups cost more than a small matrix product.
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

    The cost of small networks is the number of operations, not the arithmetic: two networks in one product cost
    little more than one.
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
            # [count, in, out] and [count, 1, out], the shapes of batched products
            self.register_parameter(f"weight_{layer}", nn.Parameter(weight.transpose(1, 2).contiguous()))
            self.register_parameter(f"bias_{layer}", nn.Parameter(bias.unsqueeze(1)))
            inputs = width

    def forward(self, features: Tensor, networks: Tensor | None = None) -> Tensor:
        """Map features [B, inputs], shared by all networks, to [count, B, outputs], or by those in `networks`."""
        hidden = features.expand(self.count if networks is None else len(networks), *features.shape)
        for layer, (weight, bias) in enumerate(of_networks(parameter_pairs(self), networks)):
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
