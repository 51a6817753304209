"""Behavioural cloning against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gymnasium import Space, spaces

from offline_parts import RATES, make_offline, offline_batch
from replay_parts import CHOICE, TORQUE, generator
from rl_training.algorithms.offline.bc import likelihood_loss
from rl_training.models.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical

HALF = math.log(2)


def test_the_loss_is_minus_the_mean_log_likelihood() -> None:
    even = torch.zeros(2, 2)
    assert likelihood_loss(Categorical(even), torch.tensor([0, 1]), 0.0).item() == pytest.approx(HALF)
    several = MultiCategorical(torch.zeros(2, 4), (2, 2))
    assert likelihood_loss(several, torch.zeros(2, 2, dtype=torch.int64), 0.0).item() == pytest.approx(2 * HALF)
    assert likelihood_loss(Bernoulli(torch.zeros(2, 3)), torch.ones(2, 3), 0.0).item() == pytest.approx(3 * HALF)
    normal = DiagonalGaussian(torch.zeros(1, 1), torch.zeros(1))
    expected = 0.5 * 4.0 + 0.5 * math.log(2 * math.pi)
    assert likelihood_loss(normal, torch.tensor([[2.0]]), 0.0).item() == pytest.approx(expected)


def test_the_penalty_is_the_mean_squared_log_probability() -> None:
    policy = Categorical(torch.tensor([[0.0, math.log(3)]]))  # probabilities 1/4 and 3/4
    squares = (math.log(0.25) ** 2 + math.log(0.75) ** 2) / 2
    loss = likelihood_loss(policy, torch.tensor([1]), 0.5)
    assert loss.item() == pytest.approx(-math.log(0.75) + 0.5 * squares)


def test_the_deterministic_policy_minimises_the_squared_distance() -> None:
    learner = make_offline("bc", TORQUE)
    batch = offline_batch(learner, TORQUE)
    expected = (learner.actor(batch.observation) - batch.action).square().mean().item()
    assert learner.loss(batch)[0].item() == pytest.approx(expected, rel=1e-6)
    observation = batch.observation
    assert learner.choose(observation, None, generator(0)).equal(learner.choose(observation, None, None))


@pytest.mark.parametrize(
    ("actions", "params"),
    [
        (TORQUE, {}),
        (TORQUE, {"policy": "stochastic"}),
        (CHOICE, {}),
        (spaces.MultiDiscrete([3, 2]), {}),
        (spaces.MultiBinary(3), {}),
    ],
    ids=str,
)
def test_a_rule_is_imitated(actions: Space[Any], params: dict[str, Any]) -> None:
    learner = make_offline("bc", actions, hidden_sizes=(32,), **params)
    batch = offline_batch(learner, actions, rows=64)
    signs = (batch.observation > 0).long()
    by_rule = {
        spaces.Box: (signs[:, :2] - 0.5).float(),
        spaces.Discrete: signs[:, 0] + 2 * signs[:, 1],
        spaces.MultiDiscrete: torch.stack((signs[:, 0] + signs[:, 1], signs[:, 2]), dim=1),
        spaces.MultiBinary: signs.to(torch.int8),
    }
    batch = batch._replace(action=by_rule[type(actions)])
    for _ in range(400):
        learner.update(batch, RATES, generator(0))
    chosen = learner.choose(batch.observation, None, None)
    if isinstance(actions, spaces.Box):
        assert (chosen - batch.action).abs().mean() < 0.1
    else:
        assert (chosen == batch.action).float().mean() > 0.97
