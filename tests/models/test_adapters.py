"""Adapters: what they add to a layer, when they join, and what a stage trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from planning_parts import generator, randomize
from rl_training.models.optimizers import FlatOptimizer
from rl_training.models.planning.adapters import (
    ScaledLinear,
    activate_adapters,
    freeze_for_stage,
    merged_weights,
    scaled_layers,
    trainable_parameters,
)

INPUTS, OUTPUTS, RANK, ADAPTERS = 5, 4, 2, 3
STAGES = range(ADAPTERS + 1)


class Backbone(nn.Module):
    """Two layers with a plain one between them."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.first = ScaledLinear(INPUTS, OUTPUTS, adapters=ADAPTERS, rank=RANK, generator=generator(seed))
        self.norm = nn.LayerNorm(OUTPUTS)
        self.second = ScaledLinear(OUTPUTS, OUTPUTS, adapters=ADAPTERS, rank=RANK, generator=generator(seed + 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(features))))


def make_layer() -> ScaledLinear:
    return ScaledLinear(INPUTS, OUTPUTS, adapters=ADAPTERS, rank=RANK, generator=generator(0))


def features() -> torch.Tensor:
    return torch.randn(7, INPUTS, generator=generator(9))


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("stage", STAGES)
def test_a_layer_adds_scaled_low_rank_products_of_the_adapters_in_use(stage: int) -> None:
    layer = make_layer()
    randomize(layer)
    activate_adapters(layer, stage)
    inputs = features()
    expected = inputs @ layer.weight.T + layer.bias
    for adapter in range(stage):
        expected = expected + layer.scales[adapter] * (inputs @ layer.down[adapter].T @ layer.up[adapter].T)
    torch.testing.assert_close(layer(inputs), expected, rtol=1e-5, atol=1e-5)


def test_adapters_that_are_not_in_use_get_no_gradient() -> None:
    layer = make_layer()
    randomize(layer)
    activate_adapters(layer, 1)
    layer(features()).square().sum().backward()
    assert layer.scales.grad is not None
    assert layer.scales.grad[0] != 0
    assert layer.scales.grad[1:].tolist() == [0.0, 0.0]
    for factors in (layer.down, layer.up):
        assert factors[0].grad is not None
        assert factors[1].grad is None
        assert factors[2].grad is None


@torch.no_grad()
def test_the_moment_an_adapter_joins_nothing_changes() -> None:
    model = Backbone()
    inputs = features()
    for stage in range(1, ADAPTERS + 1):
        before = model(inputs)
        freeze_for_stage(model, stage)
        assert torch.equal(model(inputs), before)
        for layer in scaled_layers(model):  # what the stage learns
            layer.up[stage - 1].normal_(generator=generator(stage))
        assert (model(inputs) - before).abs().max() > 1e-2


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_trains_exactly_its_own_adapter_and_the_scales(stage: int) -> None:
    model = Backbone()
    freeze_for_stage(model, 2)  # whatever came before leaves nothing behind
    freeze_for_stage(model, stage)
    layers = ("first", "second")
    if stage == 0:
        expected = {f"{layer}.{name}" for layer in layers for name in ("weight", "bias")} | {"norm.weight", "norm.bias"}
    else:
        owned = (f"down.{stage - 1}", f"up.{stage - 1}", "scales")
        expected = {f"{layer}.{name}" for layer in layers for name in owned}
    assert trained(model) == expected
    assert trainable_parameters(model) == sum(model.get_parameter(name).numel() for name in expected)


def test_the_scales_of_this_and_earlier_adapters_learn() -> None:
    model = Backbone()
    randomize(model)
    freeze_for_stage(model, 2)
    model(features()).square().sum().backward()
    for layer in scaled_layers(model):
        assert layer.scales.grad is not None
        assert (layer.scales.grad[:2].abs() > 0).all()
        assert layer.scales.grad[2] == 0


@pytest.mark.parametrize("stage", [-1, ADAPTERS + 1])
def test_there_are_as_many_stages_as_adapters(stage: int) -> None:
    with pytest.raises(ValueError, match=f"stage {stage} is not one of 0 to {ADAPTERS}"):
        freeze_for_stage(Backbone(), stage)


def test_an_optimizer_that_starts_anew_moves_nothing_that_is_frozen() -> None:
    model = Backbone()
    freeze_for_stage(model, 0)
    optimizer = FlatOptimizer(model.parameters(), "adam", eps=1e-8)

    def step() -> dict[str, torch.Tensor]:
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        optimizer.step(model(features()).square().sum(), learning_rate=0.1, max_grad_norm=10.0)
        return before

    step()
    freeze_for_stage(model, 1)
    optimizer.restart()
    for _ in range(3):  # the factor that is 0 hides the other's gradient at first
        before = step()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == trained(model)


@torch.no_grad()
def test_merged_weights_are_made_once_and_forgotten() -> None:
    model = Backbone()
    randomize(model)
    activate_adapters(model, 2)
    inputs = features()
    before = model(inputs)
    with merged_weights(model):
        torch.testing.assert_close(model(inputs), before)
        assert model.first.merged() is model.first.merged()
        for layer in scaled_layers(model):
            layer.scales.mul_(2)
        torch.testing.assert_close(model(inputs), before)
    assert (model(inputs) - before).abs().max() > 1e-2
