"""The gates of recurrent layers start as `chrono_init` says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.params.recurrent_params import RecurrentParams, ReplayedMemoryParams
from rl_training.algorithms.ppo import PPO
from rl_training.models.recurrent import make_layers

SIZE, INPUTS, LONGEST = 200, 3, 50


def layers_of(kind: str, **settings: Any) -> Any:
    """Return two recurrent layers."""
    chosen = {"chrono_init": LONGEST, "orthogonal": True, **settings}
    return make_layers(kind, INPUTS, SIZE, 2, generator=torch.Generator().manual_seed(0), **chosen)


def gates(layers: Any, layer: int) -> torch.Tensor:
    """Return the biases [gates, size] that torch adds up for a layer."""
    total = getattr(layers, f"bias_ih_l{layer}") + getattr(layers, f"bias_hh_l{layer}")
    return total.detach().unflatten(0, (-1, SIZE))


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_units_remember_for_one_to_as_many_steps_as_asked_for(kind: str, orthogonal: bool) -> None:
    layers = layers_of(kind, orthogonal=orthogonal)
    for layer in range(2):
        kept = torch.sigmoid(gates(layers, layer)[1])
        steps = 1 / (1 - kept)  # after which a share of 1/e is left, for long memories
        assert steps.min() >= 2 - 1e-3
        assert steps.max() <= LONGEST
        assert abs(steps.mean().item() - (LONGEST + 2) / 2) < 3  # uniform


def test_an_lstm_takes_in_as_much_as_it_forgets() -> None:
    taken, kept = gates(layers_of("lstm"), 0)[:2]
    torch.testing.assert_close(torch.sigmoid(taken), 1 - torch.sigmoid(kept))
    assert kept.max() > 1


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_memory_outlasts_a_long_wait_only_with_the_biases(kind: str) -> None:
    waiting = torch.zeros(20, 2, INPUTS)
    waiting[0, :, 0] = torch.tensor([1.0, -1.0])  # a sign, once

    @torch.no_grad()
    def left(chrono_init: int | None) -> float:
        first, last = layers_of(kind, chrono_init=chrono_init)(waiting)[0][[0, -1]]
        return math.sqrt((last[0] - last[1]).square().sum() / (first[0] - first[1]).square().sum())

    assert left(LONGEST) > 0.2
    assert left(None) < 0.01


def test_without_it_the_biases_stay_as_they_were() -> None:
    assert not gates(layers_of("gru", chrono_init=None), 0).any()


def made_by(algorithm: Any, params: Any) -> Any:
    """Return the first recurrent layers of an algorithm's network."""
    sees, takes = spaces.Box(-1, 1, (INPUTS,), np.float32), spaces.Discrete(2)
    generator = torch.Generator().manual_seed(0)
    made = algorithm.for_params(params)(params, sees, takes, device=torch.device("cpu"), generator=generator)
    return next(part for part in made.model.modules() if isinstance(part, torch.nn.RNNBase))


def test_ppo_and_dqn_pass_the_option_on() -> None:
    memory = RecurrentParams("gru", SIZE, chrono_init=LONGEST)
    assert gates(made_by(PPO, PPOParams(recurrent=memory)), 0)[1].max() > 1
    replayed = ReplayedMemoryParams("gru", SIZE, chrono_init=LONGEST)
    assert gates(made_by(DQN, DQNParams(recurrent=replayed)), 0)[1].max() > 1
