"""Deep Q-learning by compiled code: perceptrons with ReLU or tanh and without noise on the weights, on the CPU."""

from __future__ import annotations

import torch

from rl_training.algorithms import distributional, dqn
from rl_training.algorithms.dqn import DQN
from rl_training.kernels import requires
from rl_training.kernels.checks import replace_method
from rl_training.kernels.layouts import ACTIVATIONS
from rl_training.models.layers import MLP
from rl_training.models.optimizers import FlatOptimizer
from rl_training.models.q_network import QNetwork

LARGEST = 1 << 18  # weights, beyond which torch's products make up for the cost of its calls
LARGEST_ACTING = 1 << 16  # weights, beyond which packing them for one observation takes longer than torch
LARGEST_FOR_THREADS = 1 << 22  # weights times batch size, beyond which products that threads share are faster


def attach(algorithm: DQN, kernel: str, updates: float | None) -> None:
    """Replace the gradient step and acting by compiled code."""
    requires.own_formula(algorithm, DQN, "loss", "gradient", "improve")
    requires.own_functions(dqn, "dqn_loss", "dqn_target", "take_action", "legal_values", "expected_values")
    distributions = "project_categorical", "categorical_loss", "quantile_huber_loss"
    requires.own_functions(dqn, *distributions, defined_by=distributional)
    requires.that(algorithm.device.type == "cpu", "the update is compiled for the CPU only")
    requires.exact(algorithm.optimizer, FlatOptimizer)
    model = requires.exact(algorithm.model, QNetwork)
    requires.plain_encoder(model.encoder)
    for stream in (model.advantage, model.value):
        if stream is not None:
            activation = requires.exact(stream, MLP).activation
            requires.that(activation in ACTIVATIONS, "the activation has no compiled gradient")
    weights = len(algorithm.optimizer.values)
    small = torch.get_num_threads() == 1 or weights * algorithm.params.batch_size <= LARGEST_FOR_THREADS
    requires.that(small and weights <= LARGEST, "the network is so large that torch is as fast")
    requires.enough_updates(updates)
    from rl_training.kernels.compiled_dqn import CompiledDQN  # numba takes a third of a second to import

    compiled = CompiledDQN(algorithm, kernel)
    replace_method(algorithm, "improve", compiled.improve, compiled.check_improvement)
    if weights <= LARGEST_ACTING and requires.is_own(algorithm, DQN, "act", "values", "_best", "_explore", "explored"):
        replace_method(algorithm, "act", compiled.act, compiled.check_act)
