"""MuZero's searches as a whole, and the gradient of its loss, in compiled code on the CPU."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from rl_training.algorithms import muzero
from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning import unroll
from rl_training.algorithms.planning.batches import BatchMaker
from rl_training.algorithms.planning.models import NetworkModel, PrefixModel
from rl_training.kernels import requires
from rl_training.kernels.checks import replace_method
from rl_training.kernels.search.checked import CheckedModel, CompiledValues, Watch
from rl_training.kernels.search.perceptron_layout import Cell, Dense
from rl_training.kernels.search.perceptron_model import MLPModel
from rl_training.models.optimizers import FlatOptimizer
from rl_training.models.planning import scalar_support
from rl_training.models.planning.planning_network import Block, PlanningNetwork, ValuePrefix

logger = logging.getLogger("rl_training")

LANES = 16  # as in `kernels.compiled.lanes`, which imports numba
LARGEST = 1 << 19  # weights, beyond which torch's products make up for the cost of its calls
WORTH = 4  # of a gradient step, as `requires.enough_updates` takes it: an unroll is several passes


def attach(algorithm: MuZero, kernel: str, updates: float | None) -> None:
    """Let compiled code simulate the searches of acting and of learning."""
    requires.own_formula(algorithm, MuZero, "make_model")
    requires.that(algorithm.device.type == "cpu", "the search is compiled for the CPU only")
    attach_model(algorithm, "model", algorithm.optimizer.values, kernel)
    plain: Any = algorithm.target_model
    # Reanalysis returns to the same positions while the target network stays the same.
    target = attach_model(algorithm, "target_model", algorithm.target_values, kernel, remembers=True)
    if type(algorithm.batches) is BatchMaker and algorithm.batches.network is algorithm.target_network:
        values = CompiledValues(target, plain, kernel, compile_copy=compiled_model)
        algorithm.batches = dataclasses.replace(algorithm.batches, network=values)
    try:
        attach_gradient(algorithm, kernel, updates)
    except requires.NoKernel as missing:
        logger.info("the searches are compiled, the gradient is not: %s", missing)


def attach_gradient(algorithm: MuZero, kernel: str, updates: float | None) -> None:
    """Let compiled code compute the gradient of the loss, checked by its first result."""
    requires.own_formula(algorithm, MuZero, "loss", "gradient")
    requires.own_functions(muzero, "muzero_loss", defined_by=unroll)
    requires.own_functions(unroll, "masked_mean", "clipped_share", "_halve_gradient")
    requires.own_functions(unroll, "scalar_loss", "clipped", defined_by=scalar_support)
    requires.exact(algorithm.optimizer, FlatOptimizer)
    network, params = requires.exact(algorithm.network, PlanningNetwork), algorithm.params
    for block in (network.representation, network.dynamics, network.projector, network.predictor):
        if block is not None:
            requires.exact(requires.exact(block, Block).norm, nn.LayerNorm)
    whole = params.latent_size % LANES == params.hidden_size % LANES == 0
    requires.that(whole, f"latent_size and hidden_size are no multiples of {LANES}")
    requires.that(len(algorithm.optimizer.values) <= LARGEST, "the network is so large that torch is as fast")
    requires.enough_updates(updates, WORTH)
    from rl_training.kernels.compiled_muzero import CompiledUnroll

    compiled = CompiledUnroll(algorithm, kernel)
    replace_method(algorithm, "gradient", compiled.gradient, compiled.check)


def attach_model(algorithm: MuZero, name: str, values: Tensor, kernel: str, *, remembers: bool = False) -> MLPModel:
    """Put the compiled form of a model in its place, checked by its first search; return it."""
    model = requires.exact(getattr(algorithm, name), PrefixModel if algorithm.params.value_prefix else NetworkModel)
    network = requires.exact(model.network, PlanningNetwork)
    requires.exact(network.representation, Block)
    requires.exact(network.dynamics, Block)
    if network.prefix is not None:
        requires.exact(network.prefix, ValuePrefix)
    compiled = compiled_model(model, Watch(values, network).changed, remembers=remembers)
    use_compiled = partial(setattr, algorithm, name, compiled)
    checked = CheckedModel(compiled, model, kernel, compile_copy=compiled_model, passed=use_compiled)
    setattr(algorithm, name, checked)
    return compiled


def compiled_model(
    model: NetworkModel, changed: Callable[[], bool] = lambda: False, *, remembers: bool = False
) -> MLPModel:
    """Return a model in the form that is simulated as a whole in compiled code."""
    network = model.network
    return MLPModel(
        network.encoder,
        representation=_layers(network.representation),
        action_rows=network.action_rows,
        dynamics=_layers(network.dynamics),
        reward=[_dense(network.reward[0], "relu"), _dense(network.reward[2])],
        trunk=[_dense(network.trunk, "relu")],
        value=[_dense(network.value)],
        policy=[_dense(network.policy)],
        cell=None if network.prefix is None else _cell(network.prefix),
        discount=model.discount,
        residual=True,
        rescale=True,
        changed=changed,
        remembers=remembers,
    )


def _layers(block: Block) -> list[Dense]:
    norm = (block.norm.weight, block.norm.bias)
    return [Dense(block.first.weight, block.first.bias, "relu", norm=norm), _dense(block.second)]


def _cell(cell: ValuePrefix) -> Cell:
    return Cell(
        cell.get_parameter("input_weight"),
        cell.get_parameter("input_bias"),
        cell.get_parameter("state_weight"),
        cell.get_parameter("state_bias"),
        cell.horizon,
    )


def _dense(layer: nn.Module, activation: str = "identity") -> Dense:
    assert isinstance(layer, nn.Linear)
    return Dense(layer.weight, layer.bias, activation)
