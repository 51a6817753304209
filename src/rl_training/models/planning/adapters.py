"""Low-rank adapters that are added to a linear layer in stages (Hu et al. 2021, arXiv 2106.09685).

The memory of every adapter exists from the start, so that optimizers and checkpoints keep their shapes. Stage 0 uses
no adapter; stage s adds the s-th to the previous ones. The second factor of a new adapter is 0, so that adding it
changes no output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.models.layers import initialize


class ScaledLinear(nn.Module):
    """A linear layer with the weight W + sum of scale * up @ down over the active adapters."""

    def __init__(self, inputs: int, outputs: int, *, adapters: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        weight, bias = torch.empty(outputs, inputs), torch.empty(outputs)
        initialize(weight, bias, orthogonal=False, gain=1.0, generator=generator)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        bound = 1 / math.sqrt(inputs)
        self.down = nn.ParameterList(
            nn.init.uniform_(torch.empty(rank, inputs), -bound, bound, generator=generator) for _ in range(adapters)
        )
        self.up = nn.ParameterList(torch.zeros(outputs, rank) for _ in range(adapters))
        self.scales = nn.Parameter(torch.ones(adapters))
        self.stage = 0
        """Number of active adapters."""
        self.held: Tensor | None = None
        """The merged weight inside the context `merged_weights`, else None."""

    def merged(self) -> Tensor:
        """Return the weight [outputs, inputs] including all active adapters."""
        if self.held is not None:
            return self.held
        weight: Tensor = self.weight
        for adapter in range(self.stage):
            weight = torch.addmm(weight, self.up[adapter] * self.scales[adapter], self.down[adapter])
        return weight

    def forward(self, features: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        return functional.linear(features, self.merged(), self.bias)


def scaled_layers(model: nn.Module) -> list[ScaledLinear]:
    """Return the layers of a model that have adapters."""
    return [module for module in model.modules() if isinstance(module, ScaledLinear)]


def activate_adapters(model: nn.Module, stage: int) -> None:
    """Activate the first `stage` adapters of every layer."""
    for layer in scaled_layers(model):
        if not 0 <= stage <= len(layer.down):
            raise ValueError(f"stage {stage} is not one of 0 to {len(layer.down)}, the number of adapters")
        layer.stage = stage


@torch.no_grad()
def fold_adapters(model: nn.Module) -> None:
    """Add the active adapters to the weights and reset them: outputs change only by rounding."""
    for layer in scaled_layers(model):
        layer.weight.copy_(layer.merged())
        layer.scales.fill_(1.0)
        for factor in layer.up:
            factor.zero_()


def freeze_for_stage(backbone: nn.Module, stage: int) -> None:
    """Enter a stage: stage 0 trains everything but the adapters, stage s only the s-th adapter and the scales.

    Modules outside the backbone, such as a task's encoder and heads, are left as they are. Reset an optimizer with
    momentum at the same time, or it would still move the frozen weights.
    """
    activate_adapters(backbone, stage)
    backbone.requires_grad_(stage == 0)
    for layer in scaled_layers(backbone):
        layer.scales.requires_grad_(stage > 0)
        for number, factors in enumerate(zip(layer.down, layer.up, strict=True), start=1):
            for factor in factors:
                factor.requires_grad_(number == stage)


def trainable_parameters(model: nn.Module) -> int:
    """Return the number of weights that are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


@contextmanager
def merged_weights(model: nn.Module) -> Iterator[None]:
    """Merge the adapters into the weights for many calls, such as those of one search; do not train meanwhile."""
    layers = [layer for layer in scaled_layers(model) if layer.stage > 0]
    with torch.no_grad():
        for layer in layers:
            layer.held = layer.merged()
    try:
        yield
    finally:
        for layer in layers:
            layer.held = None
