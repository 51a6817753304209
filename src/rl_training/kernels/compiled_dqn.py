"""Deep Q-learning in compiled code: acting and whole gradient steps, for perceptrons on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.dqn import DQN
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.kernels.checks import compare
from rl_training.kernels.compiled import q_updates as compiled
from rl_training.kernels.compiled.lanes import LANES
from rl_training.kernels.compiled.perceptrons import packed_size, trace_size, transposed_size
from rl_training.kernels.compiled.q_values import CATEGORICAL, NUMBER, QUANTILE, Head
from rl_training.kernels.layouts import ACTIVATIONS, as_array, mlp_places
from rl_training.models.layers import MLP
from rl_training.models.q_network import QNetwork

KINDS = {"none": NUMBER, "categorical": CATEGORICAL, "quantile": QUANTILE}
_CHUNK_NUMBERS = 1 << 16  # of one stream's layers for the rows that are passed at once: they stay in the cache
_MOST_KNOWN = 256  # batches
_NO_INDICES, _NO_MASK, _NO_NUMBERS = np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.float32)


class CompiledDQN:
    """Takes the place of `act` and `improve`."""

    def __init__(self, algorithm: DQN, kernel: str) -> None:
        params, optimizer = algorithm.params, algorithm.optimizer
        self.algorithm = algorithm
        self.kernel = kernel
        self.model: QNetwork = algorithm.model
        self.streams = describe(self.model, optimizer.values)
        self.head = Head(
            kind=KINDS[params.distribution],
            actions=self.model.num_actions,
            outputs=self.model.outputs,
            support=algorithm.support.numpy() if params.distribution == "categorical" else _NO_NUMBERS,
            huber=params.loss == "huber",
        )
        self.settings = compiled.Settings(
            double=params.double,
            max_grad_norm=-1.0 if params.max_grad_norm is None else float(params.max_grad_norm),
            beta1=float(optimizer.beta1),
            eps=float(optimizer.eps),
        )
        self.memory = allocate(self.streams, self.head)
        self._arrays = (
            optimizer.values.numpy(),
            algorithm.target_values.numpy(),
            optimizer.state["exp_avg"].numpy(),
            optimizer.state["exp_avg_sq"].numpy(),
            optimizer.gradient.numpy(),
        )
        self._known: dict[int, tuple[ReplayBatch, compiled.Batch]] = {}  # batches that were seen, by their number
        self._chance = torch.empty(0)
        self._encode: Any = self.model.encoder.forward  # calling the module itself takes longer than a small network

    def improve(self, batch: ReplayBatch, controls: Mapping[str, float]) -> dict[str, Tensor]:
        """Take a gradient step and return metrics."""
        optimizer = self.algorithm.optimizer
        report, errors = self._update(batch, float(controls["learning_rate"]), optimizer.steps + 1)
        optimizer.count_steps(1)
        loss, value, norm = torch.from_numpy(report).unbind()
        metrics = {"loss_q": loss, "q_mean": value, "gradient_norm": norm}
        return metrics if batch.weight is None else {**metrics, "td_error": torch.from_numpy(errors)}

    def check_improvement(
        self, reference: Callable[..., dict[str, Tensor]], batch: ReplayBatch, controls: Mapping[str, float]
    ) -> None:
        """Compare the gradients of a batch."""
        self.algorithm.gradient(batch)
        expected = self.algorithm.optimizer.gradient.clone()
        compare(self.kernel, "the gradient of this run's first update", self.gradient(batch), expected)

    def gradient(self, batch: ReplayBatch) -> Tensor:
        """Return the gradient of the loss, in the optimizer's order."""
        self._update(batch, 0.0, 0)
        return self.algorithm.optimizer.gradient

    def _update(self, batch: ReplayBatch, learning_rate: float, step: int) -> tuple[np.ndarray, np.ndarray]:
        report = np.empty(compiled.REPORT, np.float32)
        errors = np.empty(len(batch.reward), np.float32)
        compiled.q_update(
            *self._arrays,
            self.streams,
            self.memory,
            self.head,
            self._transitions(batch),
            self.settings,
            _NO_INDICES,
            learning_rate,
            step,
            errors,
            report,
        )
        return report, errors

    def _transitions(self, batch: ReplayBatch) -> compiled.Batch:
        """Return a batch as compiled code takes it; a replay fills the same batches again and again."""
        known = self._known.get(id(batch))
        if known is not None:
            return known[1]
        weight, mask = batch.weight, batch.next_mask
        features, next_features = self._encode(batch.observation), self._encode(batch.next_observation)
        arrays = compiled.Batch(
            _array(features),
            _array(next_features),
            _array(batch.action),
            _array(batch.reward),
            _array(batch.discount),
            _NO_NUMBERS if weight is None else _array(weight),
            _NO_MASK if mask is None else _array(mask.view(torch.uint8)),
        )
        if all(part is None or _shares(part, array) for part, array in zip(_parts(batch), arrays, strict=True)):
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[id(batch)] = batch, arrays  # the batch itself is kept: its number is nobody else's
        return arrays

    def act(
        self, observation: Observation, mask: Tensor | None, controls: Mapping[str, float], generator: torch.Generator
    ) -> Tensor:
        """Return the best actions, or with probability epsilon random ones."""
        algorithm, epsilon = self.algorithm, controls.get("epsilon", 0.0)
        if algorithm.repeats is not None:
            return algorithm.repeats.step(self.greedy(observation, mask)[0], mask, epsilon, generator)
        if epsilon <= 0:
            return self.greedy(observation, mask)[0]
        features: Tensor = self._encode(observation)
        if len(self._chance) != len(features):
            self._chance = torch.empty(len(features))
        chance = self._chance.uniform_(generator=generator)
        action, _, explores = self._best(features, mask, chance.numpy(), epsilon)
        if not explores:
            return action
        return torch.where(chance < epsilon, algorithm.random_actions(len(action), mask, generator), action)

    def greedy(self, observation: Observation, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the best legal actions [B] and the values [B, actions]."""
        action, values, _ = self._best(self._encode(observation), mask, _NO_NUMBERS, 0.0)
        return action, torch.from_numpy(values)

    def _best(
        self, features: Tensor, mask: Tensor | None, chance: np.ndarray, epsilon: float
    ) -> tuple[Tensor, np.ndarray, bool]:
        rows, actions = features.shape[0], self.head.actions
        values, action = np.empty((rows, actions), np.float32), np.empty(rows, np.int64)
        explores = compiled.greedy_actions(
            self._arrays[0],
            self.streams,
            self.memory,
            self.head,
            _array(features),
            _NO_INDICES,
            _NO_MASK if mask is None else _array(mask.view(torch.uint8)),
            values.reshape(-1),
            action,
            chance,
            epsilon,
        )
        return torch.from_numpy(action), values, explores

    def check_act(self, reference: Callable[..., Tensor], observation: Observation, *arguments: Any) -> None:
        """Compare the values of actions."""
        with torch.no_grad():
            expected = self.algorithm.values(observation)
        _, found = self.greedy(observation, None)
        compare(self.kernel, "the action values at this run's first step", found, expected)


def describe(model: QNetwork, values: Tensor) -> compiled.Streams:
    """Return what compiled code has to know of a network whose parameters are views of `values`."""
    streams = [stream for stream in (model.advantage, model.value) if isinstance(stream, MLP)]
    sizes = [stream.sizes for stream in streams]
    return compiled.Streams(
        sizes=as_array(sizes),
        places=as_array([mlp_places(values, stream) for stream in streams]),
        ends=np.cumsum([packed_size(widths) for widths in sizes]),
        transposed_ends=np.cumsum([transposed_size(widths) for widths in sizes]),
        activation=ACTIVATIONS[streams[0].activation],
    )


def allocate(streams: compiled.Streams, head: Head) -> compiled.Memory:
    """Return the memory that compiled code works in."""
    sizes = [tuple(map(int, widths)) for widths in streams.sizes]
    per_row = max(map(trace_size, sizes))
    chunk = min(max(_CHUNK_NUMBERS // per_row // LANES * LANES, LANES), 512)
    region = chunk * max(_padded(width) for widths in sizes for width in widths)
    outputs, packed = _padded(head.outputs), int(streams.ends[-1])
    return compiled.Memory(
        values=np.zeros(packed, np.float32),
        target=np.zeros(packed, np.float32),
        gradient=np.zeros(packed, np.float32),
        transposed=np.zeros(int(streams.transposed_ends[-1]) + LANES, np.float32),
        trace=np.zeros(len(sizes) * chunk * per_row, np.float32),
        stride=chunk * per_row,
        grad=np.zeros(LANES + 2 * region, np.float32),
        other=LANES + region,
        choice=np.zeros(chunk, np.int64),
        action_values=np.zeros(head.actions, np.float32),
        wanted=np.zeros(chunk * outputs, np.float32),
        taken=np.zeros(chunk * outputs, np.float32),
        valid=(np.arange(outputs) < head.outputs).astype(np.float32),
        chunk=chunk,
    )


def _padded(width: int) -> int:
    return width + -width % LANES


def _parts(batch: ReplayBatch) -> tuple[Any, ...]:
    """Return what `compiled.Batch` is made of."""
    observations = batch.observation, batch.next_observation
    return *observations, batch.action, batch.reward, batch.discount, batch.weight, batch.next_mask


def _shares(part: Observation, array: np.ndarray) -> bool:
    return isinstance(part, Tensor) and part.data_ptr() == array.ctypes.data


def _array(tensor: Tensor) -> np.ndarray:
    """Return the elements in order; of contiguous tensors they share the memory."""
    return tensor.numpy().reshape(-1)
