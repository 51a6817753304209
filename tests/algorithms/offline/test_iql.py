"""Implicit Q-learning against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from offline_parts import RATES, make_offline, offline_batch
from replay_parts import CHOICE, TORQUE, batch_of, generator, parameters_of
from rl_training.algorithms.offline.iql import (
    expectile_loss,
    iql_actor_loss,
    iql_critic_loss,
    iql_value_loss,
)
from rl_training.models.policy_network import LOG_STD_BOUNDS


def test_errors_above_and_below_have_their_weights() -> None:
    difference = torch.tensor([2.0, -1.0])
    assert expectile_loss(difference, 0.7).item() == pytest.approx((0.7 * 4 + 0.3 * 1) / 2)
    assert expectile_loss(difference, 0.5).item() == pytest.approx(0.5 * 5 / 2)


def test_the_value_that_minimises_the_loss_is_the_expectile() -> None:
    """Of values 0 and 1, equally likely, the expectile e solves e * (1 - v) = (1 - e) * v: it is e itself."""
    grid = torch.linspace(0, 1, 101)
    losses = [iql_value_loss(value.expand(2), torch.tensor([0.0, 1.0]), 0.9).item() for value in grid]
    assert grid[int(np.argmin(losses))].item() == pytest.approx(0.9, abs=0.006)


def test_critics_bootstrap_from_the_state_value() -> None:
    batch = batch_of([2.0, 2.0], [0.5, 0.0])
    predicted = torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    # Targets: 2 + 0.5 * 4 = 4, and 2 for the terminated one.
    loss = iql_critic_loss(predicted, torch.tensor([4.0, 4.0]), batch)
    assert loss.item() == pytest.approx((9 + 1) / 2 + (1 + 1) / 2)


def test_imitation_is_weighted_by_the_clipped_exponential_of_the_advantage() -> None:
    log_prob, advantage = torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 10.0])
    expected = (math.exp(3 * 0.5) * 1.0 + 100.0 * 2.0) / 2
    assert iql_actor_loss(log_prob, advantage, 3.0, 100.0).item() == pytest.approx(expected)
    assert iql_actor_loss(log_prob, advantage, 0.0, 100.0).item() == pytest.approx(1.5)


def test_no_loss_asks_for_the_value_of_an_action_outside_of_the_batch() -> None:
    learner = make_offline("iql", TORQUE)
    batch = offline_batch(learner, TORQUE)
    asked = []
    for name in ("critic", "target_critic"):
        getattr(learner, name).register_forward_hook(lambda module, inputs, output: asked.append(inputs[1]))
    learner.update(batch, RATES, generator(0))
    assert len(asked) == 2
    assert all(action is batch.action for action in asked)


@pytest.mark.parametrize("actions", [TORQUE, CHOICE], ids=["box", "discrete"])
def test_an_update_equals_one_written_with_torch_alone(actions) -> None:
    learner, twin = make_offline("iql", actions, tau=0.25), make_offline("iql", actions, tau=0.25)
    joint = torch.optim.Adam([*twin.critic.parameters(), *twin.value.parameters()], lr=RATES["learning_rate"])
    actor = torch.optim.Adam(twin.actor.parameters(), lr=RATES["actor_learning_rate"])
    for seed in range(3):
        batch = offline_batch(learner, actions, seed=seed)
        learner.update(batch, RATES, generator(seed))
        with torch.no_grad():
            judged = twin.target_critic(batch.observation, batch.action).min(dim=0).values[:, 0]
            goal = batch.reward + batch.discount * twin.value(batch.next_observation)
        joint.zero_grad()
        error = judged - twin.value(batch.observation)
        value_loss = (torch.abs(0.7 - (error < 0).float()) * error**2).mean()
        q_loss = sum(((one[:, 0] - goal) ** 2).mean() for one in twin.critic(batch.observation, batch.action))
        (value_loss + q_loss).backward()
        joint.step()
        actor.zero_grad()
        with torch.no_grad():
            weight = torch.exp(3.0 * (judged - twin.value(batch.observation))).clamp(max=100.0)
        (-(weight * twin.actor(batch.observation).log_prob(batch.action)).mean()).backward()
        actor.step()
        with torch.no_grad():
            for slow, fast in zip(twin.target_critic.parameters(), twin.critic.parameters(), strict=True):
                slow.mul_(0.75).add_(0.25 * fast)
    for name in ("actor", "critic", "value", "target_critic"):
        ours, theirs = (parameters_of(getattr(one, name)) for one in (learner, twin))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_deviation_of_the_policy_stays_within_its_bounds() -> None:
    learner = make_offline("iql", TORQUE)
    policy = learner.actor(torch.zeros(1, 3))
    assert policy.log_std[0].tolist() == pytest.approx([sum(LOG_STD_BOUNDS) / 2] * 2)
    with torch.no_grad():
        learner.actor.head.log_std.copy_(torch.tensor([50.0, -50.0]))
    assert learner.actor(torch.zeros(1, 3)).log_std[0].tolist() == pytest.approx([2.0, -5.0])


def test_the_actors_learning_rate_is_its_own_and_falls_as_a_cosine() -> None:
    learner = make_offline("iql", TORQUE)
    before = parameters_of(learner.actor), parameters_of(learner.critic)
    learner.update(offline_batch(learner, TORQUE), {**RATES, "actor_learning_rate": 0.0}, generator(0))
    assert parameters_of(learner.actor).equal(before[0])
    assert not parameters_of(learner.critic).equal(before[1])
    assert learner.params.actor_learning_rate_schedule.type == "cosine"
    assert learner.params.controls == ("learning_rate", "actor_learning_rate")
