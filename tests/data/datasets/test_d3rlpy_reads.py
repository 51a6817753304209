"""d3rlpy's own reader opens our files.

`benchmarks/peers/d3rlpy_learners.py` says how to install d3rlpy beside this package; without it the test is skipped.
The reader joins the T + 1 observations of an episode with T actions, so only actions and rewards can be compared.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from dataset_parts import random_episode, write_dataset
from peers import d3rlpy_learners

if d3rlpy_learners.why_missing() is not None:
    pytest.skip("d3rlpy is not installed", allow_module_level=True)

import d3rlpy


def test_d3rlpy_reads_the_episodes_and_the_environment_of_our_datasets() -> None:
    env = gym.make("Pendulum-v1")
    assert env.spec is not None
    generator = np.random.default_rng(1)
    ours = [
        random_episode(generator, env.observation_space, env.action_space, steps, terminated=False) for steps in (5, 9)
    ]
    write_dataset("tests/read-v0", ours, env.observation_space, env.action_space, env_spec=env.spec.to_json())
    dataset, recovered = d3rlpy.datasets.get_minari("tests/read-v0")
    assert recovered.unwrapped.spec.id == "Pendulum-v1"
    for episode, theirs in zip(ours, dataset.episodes, strict=True):
        np.testing.assert_array_equal(theirs.actions, episode.actions)
        np.testing.assert_array_equal(theirs.rewards[:, 0], episode.rewards)
