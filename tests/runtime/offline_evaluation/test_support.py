"""What an off-policy evaluation says about its support in the data."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.algorithms.evaluation.action_features import ActionFeatures
from rl_training.experiment.statistics import Interval
from rl_training.runtime.offline_evaluation.fitting import returns_to_go, value_scale
from rl_training.runtime.offline_evaluation.policy_outputs import PolicyOutputs
from rl_training.runtime.offline_evaluation.support import (
    Evidence,
    action_agreement,
    doubts_about_value,
    doubts_about_weights,
)
from tabular import columns_of

GOOD = Evidence(
    episodes=50,
    agreement=0.4,
    value=5.0,
    interval=Interval(4.0, 6.0),
    residual=0.1,
    dataset_values=np.linspace(0.0, 10.0, 50),
    effective_episodes=30.0,
)


def test_nothing_is_doubted_with_good_support():
    assert doubts_about_value(GOOD) == []
    assert doubts_about_weights(GOOD) == []
    assert doubts_about_weights(GOOD._replace(effective_episodes=None)) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"episodes": 9}, "only 9 episodes; record at least 10"),
        ({"episodes": 1}, "only 1 episode;"),
        ({"agreement": 0.012}, "only 1.2 % of the dataset's actions"),
        ({"value": 10.5}, "outside of the values of all episodes in the dataset, 0.0 to 10.0"),
        ({"value": -0.5}, "outside of the values of all episodes"),
        ({"interval": Interval(-1.0, 9.5)}, "wider than the range of the dataset's values"),
        ({"residual": -2.0}, "still 2.0 from their fixed point after the last update; raise --updates"),
    ],
)
def test_each_weakness_is_one_sentence(change, word):
    (sentence,) = doubts_about_value(GOOD._replace(**change))
    assert word in sentence


def test_few_effective_episodes_are_doubted():
    (sentence,) = doubts_about_weights(GOOD._replace(effective_episodes=2.5))
    assert "2.5 effective episodes of 50" in sentence


def test_agreement_of_discrete_actions_is_the_policys_mean_probability_of_them():
    columns = columns_of([np.array([0, 1, 0])], [np.array([1, 0])], [np.ones(2)], [True])
    outputs = PolicyOutputs(np.array([[0.2, 0.8], [0.4, 0.6], [0.5, 0.5]], np.float32), None)
    assert action_agreement(columns, ActionFeatures(spaces.Discrete(2), columns.action), outputs) == pytest.approx(0.6)


def test_agreement_of_continuous_actions_is_the_part_that_is_near():
    space = spaces.Box(-2, 2, (2,), np.float32)
    taken = np.array([[0.0, 0.0], [2.0, 2.0]], np.float32)
    columns = columns_of([np.zeros((3, 1), np.float32)], [taken], [np.ones(2)], [True])
    near, far, unused = [0.2, 0.25], [1.0, 0.5], [0.0, 0.0]  # the second is 0.5 away in one of two dimensions
    outputs = PolicyOutputs(np.array([[near, far, unused]], np.float32), None)
    assert action_agreement(columns, ActionFeatures(space, taken), outputs) == pytest.approx(0.5)


def test_a_truncated_episode_goes_on_with_the_mean_reward_of_its_last_quarter():
    rewards = [np.array([1.0, 2.0]), np.array([4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 3.0])]
    columns = columns_of([np.zeros(3), np.zeros(9)], [np.zeros(2), np.zeros(8)], rewards, [True, False])
    found = returns_to_go(columns, 0.5)
    assert found[:2].tolist() == [2.0, 2.0]
    after = 2.0 / (1 - 0.5)  # for ever the mean of 1 and 3
    assert found[-2:].tolist() == [1 + 0.5 * (3 + 0.5 * after), 3 + 0.5 * after]
    assert found[2] == pytest.approx(4 + 0.5**6 * found[-2])


def test_values_are_scaled_as_the_dataset_returns():
    columns = columns_of([np.zeros(3)], [np.zeros(2)], [np.array([-1.0, 3.0])], [True])
    scale = value_scale(columns, 0.5)
    assert (scale.center, scale.scale) == (pytest.approx((0.5 + 3) / 2), pytest.approx((3 - 0.5) / 2))
    assert (scale.low, scale.high) == (-2.0, 6.0)
    constant = columns_of([np.zeros(2)], [np.zeros(1)], [np.array([1.0])], [True])
    assert value_scale(constant, 0.5).scale == 1.0
