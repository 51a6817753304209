"""The gradient of plain deep Q-learning as one compiled function, for small perceptrons with ReLU on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms import dqn
from rl_training.algorithms.dqn import DQN
from rl_training.data.replay import ReplayBatch
from rl_training.kernels import requires
from rl_training.kernels.checks import replace_gradient
from rl_training.models.layers import MLP
from rl_training.models.q_network import QNetwork

LARGEST_COMPILED = 1 << 22  # weights times batch size, beyond which torch's products make up for the cost of its calls


def attach(algorithm: DQN, kernel: str) -> None:
    """Replace the gradient by a compiled one."""
    params = algorithm.params
    requires.own_formula(algorithm, DQN, "loss", "gradient")
    requires.own_functions(dqn, "dqn_loss", "dqn_target", "take_action", "legal_values", "expected_values")
    requires.that(params.distribution == "none", "distributional values have no compiled gradient")
    requires.that(algorithm.device.type == "cpu", "the gradient is compiled for the CPU only")
    model = requires.exact(algorithm.model, QNetwork)
    requires.plain_encoder(model.encoder)
    requires.that(model.value is None, "dueling streams have no compiled gradient")
    stream = requires.exact(model.advantage, MLP)
    requires.that(stream.activation is torch.relu, "only ReLU has a compiled gradient")
    small = len(algorithm.optimizer.values) * params.batch_size <= LARGEST_COMPILED
    requires.that(small, "the network is so large that torch is as fast")
    gradient = DQNGradient(algorithm, stream.sizes)
    replace_gradient(algorithm, kernel, "gradient", gradient, algorithm.optimizer)


class DQNGradient:
    """Fills the network's gradient as `DQN.gradient` does."""

    def __init__(self, algorithm: DQN, sizes: tuple[int, ...]) -> None:
        from rl_training.kernels.compiled_dqn import CompiledGradient  # numba takes a third of a second to import

        self._encode: Any = algorithm.model.encoder.forward
        self._gradient = CompiledGradient(
            sizes,
            algorithm.optimizer.values,
            algorithm.target_values,
            algorithm.optimizer.gradient,
            double=algorithm.params.double,
            huber=algorithm.params.loss == "huber",
        )

    def __call__(self, batch: ReplayBatch) -> dict[str, Tensor]:
        """Compute the gradient and return metrics."""
        loss, errors, value = self._gradient(
            self._encode(batch.observation), self._encode(batch.next_observation), batch
        )
        metrics = {"loss_q": loss, "q_mean": value}
        return metrics if errors is None else {**metrics, "td_error": errors}
