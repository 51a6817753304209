"""Fitted Q evaluation: targets and losses by hand, and a small decision process solved by linear algebra."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.evaluation.fitted_q import (
    FittedQ,
    FittedQBatch,
    FittedQParams,
    ValueScale,
    expected_value,
    fitted_q_loss,
    fitted_q_target,
    possible_values,
)
from rl_training.models.encoders import VectorEncoder

NO_BOUNDS = (-math.inf, math.inf)
STATES, ACTIONS, GAMMA = 4, 2, 0.9


def _batch(**values: Any) -> FittedQBatch:
    fields: dict[str, Any] = dict.fromkeys(FittedQBatch._fields, torch.zeros(2, 1))
    return FittedQBatch(**{**fields, **values})


def test_the_target_of_a_terminated_transition_is_its_reward_and_a_truncated_one_goes_on():
    batch = _batch(reward=torch.tensor([1.0, 2.0]), discount=torch.tensor([0.9, 0.0]))
    target = fitted_q_target(torch.tensor([[10.0, 10.0], [20.0, 20.0]]), batch, NO_BOUNDS)
    assert target.tolist() == [[10.0, 2.0], [19.0, 2.0]]


def test_targets_stay_within_what_the_rewards_can_sum_up_to():
    batch = _batch(reward=torch.tensor([1.0, -2.0]), discount=torch.tensor([0.9, 0.9]))
    assert fitted_q_target(torch.tensor([[50.0, -50.0]]), batch, (-20.0, 10.0)).tolist() == [[10.0, -20.0]]


def test_values_of_discrete_actions_are_weighted_by_the_policys_probabilities():
    values = torch.tensor([[[1.0, 5.0], [2.0, 4.0]]])  # of one member, two rows
    assert expected_value(values, torch.tensor([[0.25, 0.75], [1.0, 0.0]])).tolist() == [[4.0, 2.0]]


def test_values_of_sampled_actions_are_averaged():
    values = torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])  # of one member, two samples, two rows
    assert expected_value(values, torch.zeros(2, 2, 1)).tolist() == [[2.0, 4.0]]


def test_members_weigh_transitions_by_their_own_resample():
    predicted, target = torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([[2.0, 4.0], [2.0, 4.0]])
    weight = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
    assert fitted_q_loss(predicted, target, weight).item() == pytest.approx(0.5 * ((1 + 9) / 2 + (2 * 1 + 0) / 2))


@pytest.mark.parametrize(
    ("rewards", "terminates", "gamma", "expected"),
    [
        ((-2.0, -1.0), False, 0.9, (-20.0, -10.0)),
        ((-2.0, -1.0), True, 0.9, (-20.0, 0.0)),
        ((1.0, 1.0), True, 0.99, (0.0, 100.0)),
        ((1.0, 2.0), True, 1.0, (0.0, math.inf)),
        ((-1.0, 0.0), False, 1.0, (-math.inf, 0.0)),
    ],
)
def test_possible_values_are_geometric_sums_of_the_extreme_rewards(rewards, terminates, gamma, expected):
    assert possible_values(*rewards, terminates=terminates, gamma=gamma) == pytest.approx(expected)


def test_scaled_rewards_keep_the_bellman_equation():
    scale = ValueScale(center=-100.0, scale=50.0, low=-200.0, high=0.0)
    output, reward = torch.tensor([0.3, 0.3]), torch.tensor([-4.0, -4.0])
    for discount in (torch.tensor([0.9, 0.9]), torch.tensor([0.0, 0.0])):
        target = scale.reward(reward, discount) + discount * output
        assert scale.value(target) == pytest.approx(reward + discount * scale.value(output))
    assert scale.bounds == (-2.0, 2.0)


# -- a decision process with as many weights as there are values -----------------------------------


class Tables:
    """Deterministic transitions from every state by every action; one of them terminates."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.successor = random.integers(STATES, size=(STATES, ACTIONS))
        self.reward = random.normal(size=(STATES, ACTIONS))
        self.terminated = np.zeros((STATES, ACTIONS), bool)
        self.terminated[1, 0] = True
        self.policy = random.dirichlet(np.ones(ACTIONS), size=STATES)

    def true_values(self, policy: np.ndarray) -> np.ndarray:
        """Return Q [S, A] of a policy as the solution of its Bellman equation."""
        size = STATES * ACTIONS
        moves = np.zeros((size, size))
        for state in range(STATES):
            for action in range(ACTIONS):
                if not self.terminated[state, action]:
                    successor = self.successor[state, action]
                    moves[state * ACTIONS + action, successor * ACTIONS :][:ACTIONS] += policy[successor]
        return np.linalg.solve(np.eye(size) - GAMMA * moves, self.reward.reshape(-1)).reshape(STATES, ACTIONS)


def _fit(tables: Tables, next_policy: torch.Tensor, *, discrete: bool, updates: int = 700) -> np.ndarray:
    """Return the members' Q [M, S, A]; states and actions are one-hot, so that one layer is a table of values."""
    state, action = (torch.as_tensor(grid.reshape(-1)) for grid in np.mgrid[:STATES, :ACTIONS])
    joint = torch.nn.functional.one_hot(state * ACTIONS + action, STATES * ACTIONS).float()
    fitted = FittedQ(
        FittedQParams(members=2, hidden_sizes=(), learning_rate=0.05, tau=0.5),
        VectorEncoder(spaces.Discrete(STATES)),
        num_actions=ACTIONS if discrete else None,
        action_size=STATES * ACTIONS,
        bounds=NO_BOUNDS,
        device=torch.device("cpu"),
        generator=torch.Generator().manual_seed(0),
    )
    taken = action if discrete else joint
    batch = FittedQBatch(
        observation=state,
        action=taken,
        reward=torch.as_tensor(tables.reward.reshape(-1), dtype=torch.float32),
        discount=torch.as_tensor(GAMMA * ~tables.terminated.reshape(-1), dtype=torch.float32),
        next_observation=torch.as_tensor(tables.successor.reshape(-1)),
        next_policy=next_policy,
        weight=torch.tensor([[1.0], [3.0]]).expand(2, len(state)),
    )
    for update in range(updates):
        fitted.update(batch, progress=update / updates)
    with torch.no_grad():
        values = fitted.taken(fitted.target_critic, batch.observation, batch.action)
    return values.view(2, STATES, ACTIONS).numpy()


def test_discrete_values_converge_to_the_solution_of_the_bellman_equation():
    tables = Tables()
    next_policy = torch.as_tensor(tables.policy[tables.successor.reshape(-1)], dtype=torch.float32)
    fitted = _fit(tables, next_policy, discrete=True)
    truth = tables.true_values(tables.policy)
    np.testing.assert_allclose(fitted, np.stack([truth, truth]), atol=1e-3)


def test_values_of_action_inputs_converge_to_the_solution_of_the_bellman_equation():
    """A policy that takes one of two actions at random is given by both of them, as equally likely samples."""
    tables = Tables()
    samples = [torch.as_tensor(tables.successor.reshape(-1) * ACTIONS + action) for action in range(ACTIONS)]
    next_policy = torch.stack([torch.nn.functional.one_hot(one, STATES * ACTIONS).float() for one in samples])
    fitted = _fit(tables, next_policy, discrete=False)
    truth = tables.true_values(np.full((STATES, ACTIONS), 0.5))
    np.testing.assert_allclose(fitted, np.stack([truth, truth]), atol=1e-3)
