"""What makes stepping faster gives exactly what Gymnasium's own environments give."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rl_training.envs.families.atari import FrameStack
from rl_training.envs.families.mujoco import bind_simulation
from rl_training.envs.make import make_slots, make_vector_env
from rl_training.envs.normalize import RunningMoments, ScalarMoments
from rl_training.envs.snapshots import snapshot


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Reacher-v4", "InvertedPendulum-v5"])
def test_physics_with_bound_calls_is_that_of_gymnasium(env_id: str) -> None:
    pytest.importorskip("mujoco")
    ours, plain = make_slots(env_id, {}, mode="training", count=1)[0], gym.make(env_id)
    assert "do_simulation" in vars(ours.env.unwrapped)
    obs, expected = ours.reset(3)[0], plain.reset(seed=3)[0]
    generator = np.random.default_rng(0)
    for _ in range(60):
        np.testing.assert_array_equal(obs, expected)
        action = generator.uniform(plain.action_space.low, plain.action_space.high).astype(np.float32)  # type: ignore[attr-defined]
        step = ours.step(action)
        obs = step.obs
        expected, reward, terminated, truncated, _ = plain.step(action)
        assert (step.reward, step.terminated, step.truncated) == (float(reward), terminated, truncated)
        if terminated or truncated:
            obs, expected = ours.reset()[0], plain.reset()[0]


def test_an_environment_with_its_own_simulation_keeps_it() -> None:
    pytest.importorskip("mujoco")
    from gymnasium.envs.mujoco.mujoco_env import MujocoEnv

    class Own(MujocoEnv):
        def __init__(self) -> None:
            pass

        def do_simulation(self, ctrl: Any, n_frames: int) -> None:
            raise NotImplementedError

    env = Own()
    bind_simulation(env)
    assert "do_simulation" not in vars(env)


def test_an_action_of_another_shape_is_refused_not_broadcast() -> None:
    pytest.importorskip("mujoco")
    env: Any = make_slots("HalfCheetah-v5", {}, mode="training", count=1)[0].env.unwrapped
    with pytest.raises(ValueError, match=r"shape \(1,\).*\(6,\)"):
        env.do_simulation(np.zeros(1), 1)


@pytest.mark.parametrize("grayscale", [True, False])
def test_atari_frames_are_those_of_gymnasium(grayscale: bool) -> None:
    pytest.importorskip("ale_py")
    kwargs = {"repeat_action_probability": 0.0}
    ours = make_slots("ALE/Breakout-v5", {**kwargs, "atari": True, "grayscale": grayscale}, mode="training", count=1)[0]
    plain = AtariPreprocessing(gym.make("ALE/Breakout-v5", frameskip=1, **kwargs), grayscale_obs=grayscale)  # type: ignore[arg-type]
    obs, expected = ours.reset(1)[0], plain.reset(seed=1)[0]
    generator = np.random.default_rng(0)
    for _ in range(300):
        np.testing.assert_array_equal(obs, expected)
        action = int(generator.integers(4))
        step = ours.step(action)
        obs = step.obs
        expected, reward, terminated, truncated, _ = plain.step(action)
        assert (step.reward, step.terminated, step.truncated) == (float(reward), terminated, truncated)
        if terminated or truncated:
            np.testing.assert_array_equal(obs, expected)
            obs, expected = ours.reset()[0], plain.reset()[0]


def test_stacked_frames_are_those_of_gymnasium_in_snapshots_too() -> None:
    ours, plain = (kind(gym.make("CartPole-v1"), 3) for kind in (FrameStack, FrameStackObservation))
    np.testing.assert_array_equal(ours.reset(seed=0)[0], plain.reset(seed=0)[0])
    seen = [(ours.step(1)[0], plain.step(1)[0]) for _ in range(5)]
    for given, expected in seen:  # compared at the end: none was written again
        np.testing.assert_array_equal(given, expected)
    ours_state, plain_state = snapshot.take(ours), snapshot.take(plain)
    assert ours_state is not None
    assert plain_state is not None
    assert [layer["type"] for layer in ours_state["wrappers"]] == [layer["type"] for layer in plain_state["wrappers"]]
    snapshot.put(ours, plain_state)
    np.testing.assert_array_equal(ours.step(1)[0], plain.step(1)[0])


def test_steps_without_an_end_share_flags_that_nobody_can_write() -> None:
    env = make_vector_env("Pendulum-v1", {"max_episode_steps": 2}, mode="training", num_envs=2, backend="local_sync")
    env.reset([0, 1])
    first = env.step(np.zeros((2, 1), np.float32))
    with pytest.raises(ValueError, match="read-only"):
        first.terminated[0] = True
    second = env.step(np.zeros((2, 1), np.float32))
    assert second.truncated.all()
    assert not first.truncated.any()


@pytest.mark.parametrize("rows", [1, 4])
def test_moments_of_numbers_are_those_of_arrays(rows: int) -> None:
    numbers, arrays = ScalarMoments(), RunningMoments((1,))
    generator = np.random.default_rng(0)
    for _ in range(50):
        batch = generator.normal(3.0, 5.0, rows)
        numbers.update(batch)
        arrays.update(batch[:, None])
    assert (numbers.mean, numbers.var, numbers.count) == (arrays.mean[0], arrays.var[0], arrays.count)
    restored = ScalarMoments()
    restored.load_state_dict(numbers.state_dict())
    assert (restored.mean, restored.var, restored.count) == (numbers.mean, numbers.var, numbers.count)
