"""CartPole in one array moves as Gymnasium's vector environment does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rl_training.envs.families.vector_cartpole import VectorCartPole


@pytest.mark.parametrize("sutton_barto_reward", [False, True])
def test_every_step_is_that_of_gymnasium(sutton_barto_reward: bool) -> None:
    ours = VectorCartPole(6, max_episode_steps=40, sutton_barto_reward=sutton_barto_reward)
    theirs = CartPoleVectorEnv(6, 40, sutton_barto_reward=sutton_barto_reward)
    theirs.reset(seed=0)
    rng = np.random.default_rng(0)
    ours.reset(range(6))
    ends = 0
    for _ in range(300):
        state = ours.state_dict()
        assert state is not None
        theirs.state, theirs.steps = state["state"], state["steps"]
        theirs.prev_done = np.zeros(6, np.bool_)
        action = rng.integers(0, 2, 6)
        step = ours.step(action)
        obs, reward, terminated, truncated, _ = theirs.step(action)
        np.testing.assert_array_equal(step.final_obs, obs)
        np.testing.assert_array_equal(step.reward, reward)
        np.testing.assert_array_equal(step.terminated, terminated)
        np.testing.assert_array_equal(step.truncated, truncated)
        ends += len(step.episodes)
        for episode in step.episodes:
            assert np.abs(np.asarray(step.obs)[episode.env_index]).max() <= 0.05
    assert ends > 20


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="reset the environments first"):
        VectorCartPole(2, max_episode_steps=10).step(np.zeros(2, int))
