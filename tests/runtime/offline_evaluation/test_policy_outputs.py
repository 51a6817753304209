"""A policy's outputs for a dataset: best actions, probabilities and samples, and those of the dataset's actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from rl_training.algorithms.evaluation.action_features import ActionFeatures
from rl_training.data.datasets.columns import DatasetColumns
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.offline_evaluation import policy_outputs as module
from rl_training.runtime.offline_evaluation.policy_outputs import SAMPLES, PolicyOutputs, policy_outputs
from tabular import columns_of, table_policy

TABLE = np.array([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]])
VECTOR = spaces.Box(-1, 1, (3,), np.float32)


def _columns(start: int = 0) -> DatasetColumns:
    """Two episodes: states 0 1 2 and 2 0, actions 1 1 and 0."""
    return columns_of(
        [np.array([0, 1, 2]), np.array([2, 0])],
        [np.array([1, 1]) + start, np.array([0]) + start],
        [np.array([1.0, 2.0]), np.array([3.0])],
        [True, False],
    )


def _outputs(columns: DatasetColumns, policy: Policy, *, stochastic: bool = False) -> PolicyOutputs:
    generator = torch.Generator().manual_seed(0) if stochastic else None
    features = ActionFeatures(policy.action_space, columns.action)
    return policy_outputs(policy, columns, features, generator=generator)


@pytest.mark.parametrize("start", [0, 4])
def test_best_discrete_actions_are_certain(start: int) -> None:
    found = _outputs(_columns(start), table_policy(TABLE, start=start))
    assert found.policy.tolist() == [[0, 1], [1, 0], [1, 0], [1, 0], [0, 1]]
    assert found.log_prob is not None
    assert found.log_prob.tolist() == [0.0, -np.inf, 0.0]


def test_a_stochastic_policy_of_discrete_actions_is_given_by_its_probabilities() -> None:
    found = _outputs(_columns(4), table_policy(TABLE, start=4), stochastic=True)
    np.testing.assert_allclose(found.policy, TABLE[[0, 1, 2, 2, 0]], atol=1e-6)
    assert found.log_prob == pytest.approx(np.log([0.8, 0.3, 0.5]), abs=1e-6)


def test_illegal_actions_have_no_probability() -> None:
    columns = replace(_columns(), observation_infos={"action_mask": np.array([[True, False]] + 4 * [[True, True]])})
    policy = table_policy(TABLE)
    assert _outputs(columns, policy).policy[0].tolist() == [1, 0]
    np.testing.assert_allclose(_outputs(columns, policy, stochastic=True).policy[0], [1, 0])


def test_a_policy_that_does_not_know_its_probabilities_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = table_policy(TABLE)
    monkeypatch.setattr(policy, "log_probs", lambda *arguments: None)
    found = _outputs(_columns(), policy, stochastic=True)
    assert (found.policy * SAMPLES == np.rint(found.policy * SAMPLES)).all()
    assert found.policy.sum(axis=1) == pytest.approx(1.0)
    assert found.log_prob is None  # a share of samples is no probability


def test_rows_beyond_one_chunk_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _outputs(_columns(), table_policy(TABLE), stochastic=True)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    in_parts = _outputs(_columns(), table_policy(TABLE), stochastic=True)
    np.testing.assert_array_equal(whole.policy, in_parts.policy)
    assert whole.log_prob == pytest.approx(in_parts.log_prob, abs=0)


def _learner(name: str, action_space: Space[Any]) -> Policy:
    spec = get_algorithm_spec(name)
    generator = torch.Generator().manual_seed(0)
    params = spec.load_params()()
    actor = spec.load_algorithm()(params, VECTOR, action_space, device=torch.device("cpu"), generator=generator)
    return Policy(actor, VECTOR, action_space)


def _vector_columns(action_space: Space[Any]) -> DatasetColumns:
    random = np.random.default_rng(0)
    actions = [np.stack([action_space.sample() for _ in range(steps)]) for steps in (3, 2)]
    observations = [random.normal(size=(steps + 1, 3)).astype(np.float32) for steps in (3, 2)]
    return columns_of(observations, actions, [np.ones(3), np.ones(2)], [True, False])


@pytest.mark.parametrize("name", ["sac", "td3", "ppo"])
def test_continuous_policies_give_scaled_actions_and_densities_only_if_they_sample(name: str) -> None:
    space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    columns, policy = _vector_columns(space), _learner(name, space)
    best = _outputs(columns, policy)
    assert best.policy.shape == (1, 7, 2)
    np.testing.assert_allclose(best.policy[0] * 2, policy.actions(np.asarray(columns.observation)), atol=1e-6)
    assert best.log_prob is None
    sampled = _outputs(columns, policy, stochastic=True)
    assert sampled.policy.shape == (SAMPLES, 7, 2)
    assert not np.array_equal(sampled.policy[0], sampled.policy[1])
    expected = policy.log_probs(np.asarray(columns.observation)[columns.place], columns.action)
    assert sampled.log_prob == pytest.approx(expected)
    drawn = sampled.sample_at(np.array([0, 6]), np.random.default_rng(0))
    assert drawn.shape == (1, 2, 2)
    assert any(np.array_equal(drawn[0, 1], one[6]) for one in sampled.policy)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)])
def test_deterministic_choices_of_several_variables_have_weights(space: Space[Any]) -> None:
    policy = _learner("ppo", space)
    columns = _vector_columns(space)
    taken = policy.actions(np.asarray(columns.observation))[columns.place]
    taken[0] = (taken[0] + 1) % 2
    found = _outputs(replace(columns, action=taken), policy)
    assert found.log_prob is not None
    assert found.log_prob.tolist() == [-np.inf, 0.0, 0.0, 0.0, 0.0]
