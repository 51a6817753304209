"""MuZero's gradient in compiled code on the CPU; an encoder with weights gets its own by autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.kernels.checks import compare
from rl_training.kernels.compiled.lanes import LANES
from rl_training.kernels.compiled.planning import unroll as compiled
from rl_training.kernels.compiled.planning.affine import LAYER
from rl_training.kernels.compiled.planning.parts import BLOCK, BLOCK_LAYERS, PROJECTOR, Memory, Network, Regions
from rl_training.kernels.layouts import index_in
from rl_training.models.planning.planning_network import Block, PlanningNetwork

CHUNK = 32
"""Rows of a batch that are passed at once: what is kept of their unroll fits the processor's cache."""
_MOVED = 0.1  # deviation of what is added to the weights to compare gradients again
_NO_NUMBERS = np.empty(0, np.float32)


class CompiledUnroll:
    """Takes the place of `gradient`."""

    def __init__(self, algorithm: MuZero, kernel: str) -> None:
        params, optimizer = algorithm.params, algorithm.optimizer
        self.algorithm = algorithm
        self.kernel = kernel
        network: PlanningNetwork = algorithm.network
        self.network, self.memory = describe(network, optimizer.values, params.unroll_steps)
        self.settings = compiled.Settings(
            steps=params.unroll_steps,
            value_coef=float(params.value_coef),
            reward_coef=float(params.reward_coef),
            consistency_coef=float(params.consistency_coef),
        )
        self._flat, self._gradient = optimizer.values.numpy(), optimizer.gradient.numpy()
        self._encode: Any = network.encoder

    def gradient(self, batch: UnrollBatch) -> dict[str, Tensor]:
        """Overwrite the optimizer's gradient by that of the loss and return the loss's parts as metrics."""
        report = np.empty(compiled.REPORT)
        features: Tensor = self._encode(batch.observation)
        arrays = self._arrays(batch, features)
        compiled.unroll_gradient(self._flat, self._gradient, self.network, self.memory, arrays, self.settings, report)
        if features.requires_grad:
            features.backward(torch.from_numpy(arrays.feature_gradient).view_as(features))
        states, values, rewards, successors = np.maximum(report[compiled.STATES :], 1.0)
        metrics = {
            "loss_policy": report[compiled.LOSS_POLICY] / states,
            "loss_value": report[compiled.LOSS_VALUE] / values,
            "loss_reward": report[compiled.LOSS_REWARD] / rewards,
            "clipped_targets": report[compiled.CLIPPED] / max(report[compiled.VALUES] + report[compiled.REWARDS], 1.0),
        }
        if self.network.consistency:
            metrics["loss_consistency"] = report[compiled.LOSS_CONSISTENCY] / successors
        return {name: torch.tensor(number, dtype=torch.float32) for name, number in metrics.items()}

    def check(self, reference: Callable[[UnrollBatch], dict[str, Tensor]], batch: UnrollBatch) -> None:
        """Compare the gradients of a batch, then again with weights moved at random: heads of zeros hide much."""
        values = self.algorithm.optimizer.values
        original, generator = values.clone(), torch.Generator().manual_seed(0)
        self._compare(reference, batch)
        values.add_(torch.randn(values.shape, generator=generator), alpha=_MOVED)
        try:
            self._compare(reference, batch)
        finally:
            values.copy_(original)

    def _compare(self, reference: Callable[[UnrollBatch], dict[str, Tensor]], batch: UnrollBatch) -> None:
        gradient = self.algorithm.optimizer.gradient
        expected_metrics = reference(batch)
        expected = gradient.clone()
        metrics = self.gradient(batch)
        compare(self.kernel, "the gradient of this run's first update", gradient, expected)
        for name, number in expected_metrics.items():
            compare(self.kernel, f"`{name}` of this run's first update", metrics[name], number)

    def _arrays(self, batch: UnrollBatch, features: Tensor) -> compiled.Batch:
        successors = _NO_NUMBERS
        if self.network.consistency and batch.successor is not None:
            with torch.no_grad():
                successors = _array(self._encode(batch.successor))
        return compiled.Batch(
            features=_array(features.detach()),
            feature_gradient=np.empty(features.numel(), np.float32) if features.requires_grad else _NO_NUMBERS,
            successors=successors,
            action=batch.action.numpy().reshape(-1),
            value=_array(batch.value),
            value_mask=_array(batch.value_mask),
            reward=_array(batch.reward),
            reward_mask=_array(batch.reward_mask),
            policy=_array(batch.policy),
            policy_mask=_array(batch.policy_mask),
            successor_mask=_array(batch.successor_mask),
            weight=_NO_NUMBERS if batch.weight is None else _array(batch.weight),
        )


class _Places:
    """Places for matrices one after another, each aligned to whole vectors."""

    def __init__(self, start: int = 0) -> None:
        self.end = start

    def take(self, size: int) -> int:
        """Return where so many numbers begin."""
        begin, self.end = self.end, self.end + padded(size)
        return begin


class _Layout:
    """Where compiled code finds a network's parameters in `values`, and where in memory it keeps what it computes."""

    def __init__(self, network: PlanningNetwork, values: Tensor, steps: int) -> None:
        self.network, self.values, self.rows = network, values, (steps + 1) * CHUNK
        self.weights, self.transposed, self.trace = _Places(), _Places(), _Places(LANES)
        self.parts = [network.representation, network.dynamics]
        if network.projector is not None and network.predictor is not None:
            self.parts += [network.projector, network.predictor]

    def layers(self) -> list[tuple[int, ...]]:
        """Return an entry for each layer, in the order that compiled code expects."""
        network, cell, none = self.network, self.network.prefix, (0,) * len(LAYER.names or ())
        gates = [none, none]
        if cell is not None:
            gates = [self._layer(*(cell.get_parameter(f"{part}_{kind}") for kind in _KINDS)) for part in _CELL]
        found = [self._linear(module) for module in (network.trunk, network.policy, network.value)]
        found += [self._linear(network.reward[0]), self._linear(network.reward[2]), *gates]
        return found + [self._linear(module) for block in self.parts for module in (block.first, block.second)]

    def blocks(self) -> list[tuple[int, ...]]:
        """Return an entry for each block, and one more for the projector of the observations' latents."""
        numbers = list(range(len(self.parts)))
        if self.network.projector is not None:
            numbers.append(PROJECTOR)
        return [self._block(number, self.parts[number], place) for place, number in enumerate(numbers)]

    def regions(self) -> Regions:
        """Return where the activations outside blocks are kept."""
        network, cell = self.network, self.network.prefix
        size = 0 if cell is None else cell.size
        hidden, atoms = network.trunk.out_features, network.value.out_features
        return Regions(
            features=self._region(network.encoder.width),
            encoded=self._region(network.latent_size),
            states=self._region(network.latent_size),
            trunk=self._region(hidden),
            policy=self._region(network.policy.out_features),
            value=self._region(atoms),
            gates=self._region(4 * size),
            memory=self._region(size),
            shown=self._region(size),
            output=self._region(size),
            reward=self._region(hidden),
            reward_logits=self._region(atoms),
        )

    def _layer(self, weight: Tensor, bias: Tensor) -> tuple[int, ...]:
        outputs, inputs = weight.shape
        flat = index_in(self.values, weight), index_in(self.values, bias)
        places = self.weights.take(inputs * padded(outputs)), self.weights.take(outputs)
        return inputs, outputs, *flat, *places, self.transposed.take(outputs * padded(inputs))

    def _linear(self, module: nn.Module) -> tuple[int, ...]:
        assert isinstance(module, nn.Linear)
        return self._layer(module.weight, module.bias)

    def _block(self, number: int, block: Block, place: int) -> tuple[int, ...]:
        first = BLOCK_LAYERS + 2 * number
        hidden, width = block.first.out_features, block.second.out_features
        norm = index_in(self.values, block.norm.weight), index_in(self.values, block.norm.bias)
        regions = self._region(hidden), self._region(hidden), self._region(width)
        return first, first + 1, *norm, *regions, place * self.rows

    def _region(self, width: int) -> int:
        return self.trace.take(self.rows * padded(width))


def describe(network: PlanningNetwork, values: Tensor, steps: int) -> tuple[Network, Memory]:
    """Return a network whose parameters are views of `values` as compiled code takes it, and memory for it."""
    layout, cell = _Layout(network, values, steps), network.prefix
    layers, blocks = layout.layers(), layout.blocks()
    described = Network(
        layers=np.array(layers, LAYER),
        blocks=np.array(blocks, BLOCK),
        regions=layout.regions(),
        action_rows=index_in(values, network.action_rows),
        latent=network.latent_size,
        horizon=0 if cell is None else cell.horizon,
        consistency=network.projector is not None,
        eps=float(network.representation.norm.eps),
    )
    memory = Memory(
        values=np.zeros(layout.weights.end, np.float32),
        transposed=np.zeros(layout.transposed.end, np.float32),
        gradient=np.zeros(layout.weights.end, np.float32),
        trace=np.zeros(layout.trace.end, np.float32),
        grad=np.zeros(layout.trace.end, np.float32),
        scales=np.zeros(len(blocks) * layout.rows),
        spans=np.zeros((2, layout.rows)),
        chunk=CHUNK,
    )
    return described, memory


_CELL, _KINDS = ("input", "state"), ("weight", "bias")


def padded(width: int) -> int:
    """Return the number of columns with the padding."""
    return width + -width % LANES


def _array(tensor: Any) -> np.ndarray:
    """Return the float32 elements in order; of contiguous tensors they share the memory."""
    array: np.ndarray = tensor.detach().float().numpy().reshape(-1)
    return array
