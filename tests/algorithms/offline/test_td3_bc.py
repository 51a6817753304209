"""TD3+BC and ReBRAC against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from offline_parts import RATES, make_offline, offline_batch
from replay_parts import CPU, OBSERVATION, TORQUE, batch_of, generator, parameters_of
from rl_training.algorithms.offline.td3_bc import ReBRACParams, TD3BCParams, td3_bc_actor_loss, td3_bc_target
from rl_training.algorithms.td3 import TD3, TD3Params
from rl_training.models.layer_norm import LayerNormMLP


class Critics:
    """The first critic values an action by twice the sum of its parts plus one, the second by one less."""

    def __call__(self, observation: Tensor, action: Tensor) -> Tensor:
        value = 2 * action.sum(dim=1, keepdim=True) + 1
        return torch.stack((value, value - 1))

    def first(self, observation: Tensor, action: Tensor) -> Tensor:
        return self(observation, action)[0]


def _actor_loss(actions: list[list[float]], data: list[list[float]], **params: Any) -> tuple[float, float]:
    rows = len(actions)
    batch = batch_of([0.0] * rows, [1.0] * rows, action=data)
    parts: list[Any] = [Critics(), lambda observation: torch.tensor(actions), batch, TD3BCParams(**params)]
    loss, distance = td3_bc_actor_loss(*parts)
    return loss.item(), distance.item()


def test_the_value_is_divided_by_its_mean_magnitude() -> None:
    # Values of the first critic: 1 + 2 * (0.5 + 0.5) = 3 and 1 + 2 * (-1 - 0.5) = -2; mean 0.5, mean magnitude 2.5.
    actions, data = [[0.5, 0.5], [-1.0, -0.5]], [[0.5, 0.1], [0.0, -0.5]]
    mean = (0.4**2 / 2 + 1.0 / 2) / 2
    loss, distance = _actor_loss(actions, data)
    assert distance == pytest.approx(mean)
    assert loss == pytest.approx(mean - 2.5 / 2.5 * 0.5)
    assert _actor_loss(actions, data, alpha=1.0)[0] == pytest.approx(mean - 0.5 / 2.5)
    assert _actor_loss(actions, data, alpha=None)[0] == pytest.approx(mean - 0.5)
    assert _actor_loss(actions, data, alpha=None, actor_bc_coef=0.25)[0] == pytest.approx(0.25 * mean - 0.5)


def test_rebrac_sums_over_dimensions_and_uses_the_smallest_value() -> None:
    actions, data = [[0.5, 0.5], [-1.0, -0.5]], [[0.5, 0.1], [0.0, -0.5]]
    rebrac = {"bc_distance": "sum", "actor_value": "min", "actor_bc_coef": 0.01, "alpha": 1.0}
    # The smallest values are 2 and -3: mean -0.5, mean magnitude 2.5.
    loss, distance = _actor_loss(actions, data, **rebrac)
    assert distance == pytest.approx((0.16 + 1.0) / 2)
    assert loss == pytest.approx(0.01 * 0.58 + 0.5 / 2.5)


def _target(next_action: list[float] | None, **params: Any) -> list[float]:
    batch = batch_of([1.0, 1.0], [0.5, 0.0], action=[[0.0], [0.0]])
    if next_action is not None:
        batch = batch._replace(next_action=torch.tensor(next_action).unsqueeze(1))
    parts: list[Any] = [Critics(), lambda observation: torch.full((2, 1), 0.25), batch, torch.zeros(2, 1)]
    parts.append(TD3BCParams(**params))
    return td3_bc_target(*parts).tolist()


def test_the_target_falls_with_the_distance_from_the_next_action() -> None:
    # The smallest value of 0.25 is 2 * 0.25; the second transition is terminated.
    assert _target(None) == pytest.approx([1 + 0.5 * 0.5, 1.0])
    assert _target([1.25, 0.0], critic_bc_coef=0.2) == pytest.approx([1 + 0.5 * (0.5 - 0.2 * 1.0), 1.0])


def test_a_truncated_episode_has_no_next_action_and_no_penalty() -> None:
    assert _target([float("nan"), float("nan")], critic_bc_coef=0.2) == pytest.approx([1.25, 1.0])


def test_batches_carry_next_actions_only_for_the_critics_penalty() -> None:
    assert not TD3BCParams().with_next_action
    assert ReBRACParams().with_next_action


def test_rebrac_is_td3_bc_with_other_parameters() -> None:
    plain, own = vars(TD3BCParams()), vars(ReBRACParams())
    assert {key: own[key] for key in own if own[key] != plain[key]} == {
        "learning_rate": 1e-3,
        "batch_size": 1024,
        "normalize_observation": False,
        "hidden_sizes": (256, 256, 256),
        "alpha": 1.0,
        "actor_bc_coef": 0.01,
        "critic_bc_coef": 0.01,
        "bc_distance": "sum",
        "actor_value": "min",
        "critic_layer_norm": True,
    }
    assert [field.name for field in fields(ReBRACParams)] == [field.name for field in fields(TD3BCParams)]


def test_without_imitation_it_is_td3() -> None:
    ours = make_offline("td3_bc", TORQUE, alpha=None, actor_bc_coef=0.0)
    td3 = TD3(TD3Params(hidden_sizes=(8,)), OBSERVATION, TORQUE, device=CPU, generator=generator(0))
    for seed in range(6):
        batch = offline_batch(ours, TORQUE, seed=seed)
        for learner in (ours, td3):
            learner.update(batch, RATES, generator(seed))
    for name in ("actor", "critic", "target_actor", "target_critic"):
        torch.testing.assert_close(parameters_of(getattr(ours, name)), parameters_of(getattr(td3, name)))


def test_layer_norm_networks_are_alike_one_by_one_and_together() -> None:
    networks = LayerNormMLP(2, 3, (5, 4), "relu", orthogonal=False, generator=generator(0), outputs=1)
    with torch.no_grad():
        for value in networks.norms:
            value.add_(torch.randn(value.shape, generator=generator(1)))
    features = torch.randn(7, 3, generator=generator(2))
    together = networks(features)
    for number in range(2):
        torch.testing.assert_close(networks.one(number, features), together[number])
        hidden = features
        for layer in range(2):
            weight, bias = (networks.get_parameter(f"{kind}_{layer}")[number] for kind in ("weight", "bias"))
            scale, shift = networks.norms[2 * layer][number, 0], networks.norms[2 * layer + 1][number, 0]
            hidden = torch.relu(hidden @ weight + bias)
            hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[1:], scale, shift)
        weight, bias = (networks.get_parameter(f"{kind}_2")[number] for kind in ("weight", "bias"))
        torch.testing.assert_close(hidden @ weight + bias, together[number])
