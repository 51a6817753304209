"""MuZero's searches as a whole in compiled code, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.models import NetworkModel
from rl_training.kernels import requires
from rl_training.kernels.search.checked import CheckedModel, Watch
from rl_training.kernels.search.perceptron_model import Dense, MLPModel
from rl_training.models.planning.planning_network import Block, PlanningNetwork


def attach(algorithm: MuZero, kernel: str, updates: float | None) -> None:
    """Let compiled code simulate the searches of acting and of learning."""
    requires.own_formula(algorithm, MuZero, "make_model")
    requires.that(algorithm.device.type == "cpu", "the search is compiled for the CPU only")
    requires.that(not algorithm.params.value_prefix, "the search with a value prefix is not compiled")
    attach_model(algorithm, "model", algorithm.optimizer.values, kernel)
    attach_model(algorithm, "target_model", algorithm.target_values, kernel)


def attach_model(algorithm: MuZero, name: str, values: Tensor, kernel: str) -> None:
    """Put the compiled form of a model in its place, checked by its first search."""
    model = requires.exact(getattr(algorithm, name), NetworkModel)
    network = requires.exact(model.network, PlanningNetwork)
    requires.exact(network.dynamics, Block)
    compiled = compiled_model(model, Watch(values, network).changed)
    use_compiled = partial(setattr, algorithm, name, compiled)
    checked = CheckedModel(compiled, model, kernel, compile_copy=compiled_model, passed=use_compiled)
    setattr(algorithm, name, checked)


def compiled_model(model: NetworkModel, changed: Callable[[], bool] = lambda: False) -> MLPModel:
    """Return a model in the form that is simulated as a whole in compiled code."""
    network = model.network
    return MLPModel(
        model.initial,
        action_rows=network.action_rows,
        dynamics=_layers(network.dynamics),
        reward=[_dense(network.reward[0], "relu"), _dense(network.reward[2])],
        trunk=[_dense(network.trunk, "relu")],
        value=[_dense(network.value)],
        policy=[_dense(network.policy)],
        discount=model.discount,
        residual=True,
        rescale=True,
        changed=changed,
    )


def _layers(block: Block) -> list[Dense]:
    norm = (block.norm.weight, block.norm.bias)
    return [Dense(block.first.weight, block.first.bias, "relu", norm=norm), _dense(block.second)]


def _dense(layer: nn.Module, activation: str = "identity") -> Dense:
    assert isinstance(layer, nn.Linear)
    return Dense(layer.weight, layer.bias, activation)
