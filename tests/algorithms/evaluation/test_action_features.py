"""Environment actions as inputs of a network."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.algorithms.evaluation.action_features import ActionFeatures


def test_discrete_actions_are_numbered_from_zero():
    features = ActionFeatures(spaces.Discrete(3, start=5), np.array([5, 6]))
    assert features.num_actions == 3
    assert features(np.array([5, 7])).tolist() == [0, 2]


def test_bounded_actions_are_scaled_to_one():
    space = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
    features = ActionFeatures(space, np.zeros((2, 2), np.float32))
    assert (features.num_actions, features.size) == (None, 2)
    assert features(np.array([[-2.0, 10.0], [1.0, 5.0]])).tolist() == [[-1.0, 1.0], [0.5, 0.0]]
    assert features(np.zeros((4, 3, 2))).shape == (4, 3, 2)


def test_unbounded_actions_are_scaled_as_the_dataset_spreads():
    space = spaces.Box(-np.inf, np.inf, (1, 2), np.float32)
    features = ActionFeatures(space, np.array([[[0.0, 7.0]], [[4.0, 7.0]]], np.float32))
    assert features(np.array([[[6.0, 8.0]]])).tolist() == [[2.0, 1.0]]  # a constant action is only shifted


def test_choices_are_one_hot_and_bits_stay():
    choices = ActionFeatures(spaces.MultiDiscrete([2, 3], start=[1, 0]), np.array([[1, 0]]))
    assert choices.size == 5
    assert choices(np.array([[2, 1]])).tolist() == [[0, 1, 0, 1, 0]]
    bits = ActionFeatures(spaces.MultiBinary((2, 2)), np.zeros((1, 2, 2), np.int8))
    assert bits(np.array([[[0, 1], [1, 1]]], np.int8)).tolist() == [[0, 1, 1, 1]]


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([2, 3])])
def test_a_batch_has_a_row_of_features_per_action(space):
    actions = np.stack([space.sample() for _ in range(4)])
    features = ActionFeatures(space, actions)
    assert features(actions).shape == (4, features.size)
    assert features(actions).dtype == np.float32
