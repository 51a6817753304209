"""What is stored: real steps only, nothing across episodes, truncation bootstraps, termination does not."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.advantages import generalized_advantage
from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.envs.make import make_vector_env
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.setup.streams import derive_seeds

CPU = torch.device("cpu")
PUSH_LEFT = np.array(0)


class ScriptedActor:
    """Takes fixed actions and values an observation by a sum that tells which one it was."""

    device = CPU
    memory_size = 0
    values_of_legal = False
    act_on_host = OnPolicyAlgorithm.act_on_host

    def __init__(self, action):
        self.action = action
        self.rollouts = 0

    def start_rollout(self):
        self.rollouts += 1

    def act(self, observation, mask, controls, generator):
        return torch.as_tensor(np.repeat(self.action[np.newaxis], observation.shape[0], axis=0))

    def env_action(self, action):
        return action.numpy()

    def values(self, observation):
        return observation[:, 0] * 100 + observation[:, 1] + 0.5


def collector_for(env_id, *, num_steps, num_envs=1, backend="local_sync", action=PUSH_LEFT):
    env = make_vector_env(env_id, {}, mode="training", num_envs=num_envs, backend=backend)
    collector = RolloutCollector(
        env, ScriptedActor(action), num_steps=num_steps, seed=3, device=CPU, generator=torch.Generator()
    )
    return env, collector


def target_value(rollout, actor, gamma):
    """One-step value targets (lambda 0)."""
    value = actor.values(rollout.observation.flatten(0, 1)).view(rollout.reward.shape)
    last_value = actor.values(rollout.last_observation)
    ends = (rollout.final_value, rollout.terminated, rollout.truncated, last_value)
    return generalized_advantage(rollout.reward, value, *ends, gamma=gamma, gae_lambda=0.0) + value


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
def test_stored_transitions_are_the_real_steps_of_the_environments(backend):
    """Three steps per episode; no row is a reset in disguise."""
    env, collector = collector_for("run_samples:Run/Script-v0", num_steps=9, num_envs=2, backend=backend)
    episodes = []
    try:
        rollouts = []
        for _ in range(2):
            rollout = collector.collect({}, on_step=lambda step: episodes.extend(step.episodes))
            rollouts.append((rollout.observation.clone(), rollout.reward.clone()))
    finally:
        env.close()
    observation = torch.cat([pair[0] for pair in rollouts])[:, 0].tolist()
    reward = torch.cat([pair[1] for pair in rollouts])[:, 0].tolist()
    assert observation == [[episode, step] for episode in range(6) for step in range(3)]
    assert reward == [10.0 * episode + step for episode in range(6) for step in (1, 2, 3)]
    assert sum(episode.length for episode in episodes if episode.env_index == 0) == 18
    assert [episode.episode_return for episode in episodes if episode.env_index == 1][:2] == [6.0, 36.0]


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not(backend):
    env, collector = collector_for("run_samples:Run/Script-v0", num_steps=9, backend=backend)
    try:
        rollout = collector.collect({})
    finally:
        env.close()
    ends = torch.zeros(9)
    ends[5] = 1 * 100 + 3 + 0.5  # the second episode is truncated in [1, 3]; the third also terminates
    assert rollout.final_value[:, 0].tolist() == ends.tolist()
    assert rollout.terminated[:, 0].nonzero().flatten().tolist() == [2, 8]
    assert rollout.truncated[:, 0].nonzero().flatten().tolist() == [5, 8]
    targets = target_value(rollout, collector.actor, gamma=0.9)[:, 0]
    assert targets[1].item() == pytest.approx(2 + 0.9 * 2.5)  # inside: the value of [0, 2]
    assert targets[2].item() == pytest.approx(3)  # terminated: the reward alone
    assert targets[5].item() == pytest.approx(13 + 0.9 * 103.5)  # truncated: the value of [1, 3], not of [2, 0]
    assert targets[8].item() == pytest.approx(23)  # both: it terminated


def test_a_rollout_that_ends_inside_an_episode_bootstraps_from_what_follows():
    env, collector = collector_for("run_samples:Run/Script-v0", num_steps=4)
    rollout = collector.collect({})
    assert rollout.last_observation.tolist() == [[1.0, 1.0]]
    assert target_value(rollout, collector.actor, gamma=0.9)[3].item() == pytest.approx(11 + 0.9 * 101.5)
    env.close()


def test_pendulum_bootstraps_at_its_time_limit():
    """Step 200 is a truncation: its target holds the value of the state the pendulum is in, not of the next reset."""
    action = np.array([0.5], dtype=np.float32)
    env, collector = collector_for("Pendulum-v1", num_steps=201, action=action)
    rollout = collector.collect({})
    env.close()
    plain = gym.make("Pendulum-v1")
    observation, _ = plain.reset(seed=derive_seeds(3, "environment")[0])
    rewards = []
    for step in range(200):
        np.testing.assert_array_equal(rollout.observation[step, 0].numpy(), observation)
        observation, reward, terminated, truncated, _ = plain.step(action)
        rewards.append(reward)
    plain.close()
    assert truncated
    assert not terminated
    np.testing.assert_allclose(rollout.reward[:200, 0], rewards, rtol=1e-6)
    assert rollout.truncated[:, 0].nonzero().flatten().tolist() == [199]
    final_value = float(observation[0] * 100 + observation[1] + 0.5)
    assert rollout.final_value[199, 0].item() == pytest.approx(final_value, rel=1e-6)
    target = target_value(rollout, collector.actor, gamma=0.99)[199, 0].item()
    assert target == pytest.approx(rewards[-1] + 0.99 * final_value, rel=1e-5)
    assert not np.allclose(rollout.observation[200, 0].numpy(), observation)


@pytest.mark.parametrize("backend", ["local_sync", "local_async", "vector"])
def test_every_cartpole_backend_counts_real_steps(backend):
    """The lengths of finished episodes and of those in progress add up to what is stored."""
    env, collector = collector_for("CartPole-v1", num_steps=64, num_envs=6, backend=backend, action=np.array(1))
    lengths = np.zeros(6, dtype=int)
    for _ in range(3):
        rollout = collector.collect(
            {},
            on_step=lambda step: np.add.at(
                lengths, [episode.env_index for episode in step.episodes], [e.length for e in step.episodes]
            ),
        )
        ended = (rollout.terminated | rollout.truncated).numpy()
        starts = np.abs(rollout.observation.numpy()[1:]).max(axis=-1) <= 0.05
        np.testing.assert_array_equal(starts, ended[:-1])  # a fresh start follows an end and nothing else
    in_progress = 64 - 1 - np.array([np.flatnonzero(column)[-1] for column in ended.T])
    np.testing.assert_array_equal(lengths + in_progress, np.full(6, 3 * 64))
    env.close()


def test_an_interrupted_rollout_goes_on_where_it_stopped():
    env, collector = collector_for("run_samples:Run/Script-v0", num_steps=9)
    steps = []
    assert collector.collect({}, interrupted=lambda: len(steps) == 4, on_step=steps.append) is None
    assert collector.steps_in_progress == 4
    rollout = collector.collect({}, on_step=steps.append)
    assert len(steps) == 9
    assert collector.steps_in_progress == 0
    assert rollout.observation[:, 0].tolist() == [[episode, step] for episode in range(3) for step in range(3)]
    assert collector.actor.rollouts == 1
    env.close()


def test_a_saved_rollout_in_progress_is_the_same_in_another_collector():
    env, collector = collector_for("run_samples:Run/Script-v0", num_steps=9)
    steps = []
    collector.collect({}, interrupted=lambda: len(steps) == 7, on_step=steps.append)
    other_env, other = collector_for("run_samples:Run/Script-v0", num_steps=9)
    other.load_state_dict(collector.state_dict(), step=7)
    one, two = collector.collect({}), other.collect({})
    for name in ("observation", "action", "reward", "terminated", "truncated", "final_value", "last_observation"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert other.actor.rollouts == 0  # no new rollout began
    env.close()
    other_env.close()
