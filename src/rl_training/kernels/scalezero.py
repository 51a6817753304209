"""ScaleZero's searches as a whole in compiled code, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from rl_training.algorithms.planning.scalezero_models import ScaleZeroModel
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.kernels import requires
from rl_training.kernels.search.checked import CheckedModel, Watch
from rl_training.kernels.search.transformer_model import Block, Linear, Norm, TaskHeads, Transformer, TransformerModel
from rl_training.models.planning.adapters import ScaledLinear
from rl_training.models.planning.experts import MixtureOfExperts
from rl_training.models.planning.scalezero_network import SIMPLEX_SIZE, ScaleZeroNetwork, TaskParts
from rl_training.models.planning.world_transformer import TransformerBlock, WorldTransformer
from rl_training.search.model import Searchable


def attach(algorithm: ScaleZero, kernel: str, updates: float | None) -> None:
    """Let compiled code simulate the searches."""
    requires.own_formula(algorithm, ScaleZero, "simulated")
    requires.that(algorithm.device.type == "cpu", "the search is compiled for the CPU only")
    simulator = Simulator(algorithm, kernel)
    algorithm.simulated = simulator  # type: ignore[method-assign]


class Simulator:
    """Returns what simulates a model of either network; the first search of each is checked."""

    def __init__(self, algorithm: ScaleZero, kernel: str) -> None:
        self.kernel = kernel
        self.discount = algorithm.params.discount
        flat = {"network": algorithm.optimizer.values, "target_network": algorithm.target_values}
        self.transformers = {}
        for name, values in flat.items():
            network = requires.exact(getattr(algorithm, name), ScaleZeroNetwork)
            _check_parts(network)
            watch = Watch(values, network, lambda: algorithm.stage)
            self.transformers[network] = compiled_transformer(network, self.discount, watch.changed)
        self._checked: set[ScaleZeroNetwork] = set()

    def __call__(self, model: ScaleZeroModel) -> Searchable:
        """Return the compiled form of a model."""
        compiled = TransformerModel(self.transformers[model.network], model.tasks, model.encode)
        if model.network in self._checked:
            return compiled
        passed = partial(self._checked.add, model.network)
        return CheckedModel(compiled, model, self.kernel, compile_copy=self._compile_copy, passed=passed)

    def _compile_copy(self, model: ScaleZeroModel) -> TransformerModel:
        transformer = compiled_transformer(model.network, self.discount)
        return TransformerModel(transformer, model.tasks, model.encode)


def _check_parts(network: ScaleZeroNetwork) -> None:
    requires.exact(network.transformer, WorldTransformer)
    for block in network.transformer.blocks:
        requires.exact(requires.exact(block, TransformerBlock).experts, MixtureOfExperts)
    for task in range(len(network.specs)):
        requires.exact(network.parts(task), TaskParts)


def compiled_transformer(
    network: ScaleZeroNetwork, discount: float, changed: Callable[[], bool] = lambda: False
) -> Transformer:
    """Return the network in the form that is searched as a whole in compiled code, on the CPU."""
    blocks = [_block(block) for block in network.transformer.blocks]
    first = network.transformer.blocks[0]
    assert isinstance(first, TransformerBlock)
    return Transformer(
        blocks,
        [_task(network.parts(task)) for task in range(len(network.specs))],
        positions=network.transformer.positions,
        norm=_norm(network.transformer.norm),
        heads=first.heads,
        top_k=first.experts.top_k,
        group=SIMPLEX_SIZE,
        discount=discount,
        changed=changed,
    )


def _block(block: nn.Module) -> Block:
    assert isinstance(block, TransformerBlock)
    experts = block.experts
    return Block(
        attention_norm=_norm(block.attention_norm),
        attention_input=_linear(block.attention_input),
        attention_output=_linear(block.attention_output),
        experts_norm=_norm(block.experts_norm),
        experts_first=_linear(experts.first),
        experts_second=_linear(experts.second),
        expert_size=len(experts.first.bias) if experts.router is None else experts.expert_size,
        router=None if experts.router is None else Linear(partial(_itself, experts.router)),
    )


def _task(parts: TaskParts) -> TaskHeads:
    return TaskHeads(
        action_rows=parts.action_rows,
        state_trunk=_linear(parts.state_trunk),
        policy=_linear(parts.policy),
        value=_linear(parts.value),
        step_trunk=_linear(parts.step_trunk),
        latent=_linear(parts.latent),
        reward=_linear(parts.reward),
    )


def _norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight, norm.bias)


def _linear(layer: ScaledLinear | nn.Linear) -> Linear:
    if isinstance(layer, ScaledLinear):
        return Linear(layer.merged, layer.bias)
    return Linear(partial(_itself, layer.weight), layer.bias)


def _itself(weight: Tensor) -> Tensor:
    return weight
