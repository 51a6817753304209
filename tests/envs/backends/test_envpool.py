"""EnvPool: Gymnasium's tasks in the same version, with every step a real one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.families.envpool_vector import check_pool
from rl_training.envs.make import check_environment, make_vector_env
from rl_training.envs.vector import VectorEnv
from rl_training.envs.workers.backend_choice import resolve_backend
from rl_training.errors import ConfigError, MissingExtraError, NonFiniteError

GAME = "ALE/Breakout-v5"


@contextmanager
def _env(env_id: str, num_envs: int = 3, backend: str = "envpool", **env_kwargs: Any) -> Iterator[VectorEnv]:
    with closing(make_vector_env(env_id, env_kwargs, mode="training", num_envs=num_envs, backend=backend)) as env:
        yield env


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "repair"),
    [
        ("LunarLander-v3", {}, "neither classic control nor MuJoCo nor Atari; use `auto`"),
        ("CartPole-v1", {"frame_stack": 4}, "remove env_kwargs.frame_stack"),
        ("CartPole-v1", {"reward_sign": True}, "remove env_kwargs.reward_sign"),
        ("Pendulum-v1", {"g": 9.81}, "does not take g"),
        (GAME, {}, "set env_kwargs.atari to true"),
        (GAME, {"atari": True, "grayscale": False}, "set env_kwargs.grayscale to true"),
        (GAME, {"atari": True, "noop_max": 0}, "set env_kwargs.noop_max to 1 or more"),
        (GAME, {"atari": True, "mode": 1}, "remove env_kwargs.mode"),
    ],
)
def test_what_it_cannot_run_is_refused_with_the_repair(env_id: str, env_kwargs: dict[str, Any], repair: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_backend(env_id, env_kwargs, "envpool", 2)
    assert repair in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="envpool"):
        resolve_backend("CartPole-v1", {}, "envpool", 2)


def test_auto_says_what_it_would_give_and_never_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    backend, reason = resolve_backend("HalfCheetah-v5", {}, "auto", 8)
    assert backend == "local_sync"
    assert "`envpool` steps on several cores, but starts new episodes on resume" in reason


def _cartpole(obs: np.ndarray) -> Any:
    env: Any = gym.make("CartPole-v1").unwrapped
    env.reset()
    env.state = obs.astype(np.float64)
    return env


def _pendulum(obs: np.ndarray) -> Any:
    env: Any = gym.make("Pendulum-v1").unwrapped
    env.reset()
    env.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]], np.float64)
    return env


def _acrobot(obs: np.ndarray) -> Any:
    env: Any = gym.make("Acrobot-v1").unwrapped
    env.reset()
    angles = np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2])
    env.state = np.array([*angles, obs[4], obs[5]], np.float64)
    return env


def _mountain_car(obs: np.ndarray) -> Any:
    env: Any = gym.make("MountainCar-v0").unwrapped
    env.reset()
    env.state = obs.astype(np.float64)
    return env


def _continuous_car(obs: np.ndarray) -> Any:
    env: Any = gym.make("MountainCarContinuous-v0").unwrapped
    env.reset()
    env.state = obs.astype(np.float64)
    return env


def _mujoco(env_id: str, hidden: int) -> Callable[[np.ndarray], Any]:
    """Return a function that sets a state of which the first `hidden` positions are not observed and do not matter."""

    def from_obs(obs: np.ndarray) -> Any:
        env: Any = gym.make(env_id).unwrapped
        env.reset(seed=0)
        positions, velocities = env.model.nq - hidden, env.model.nv
        env.set_state(np.array([0.0] * hidden + [*obs[:positions]]), obs[positions : positions + velocities])
        return env

    return from_obs


@pytest.mark.parametrize(
    ("env_id", "from_obs", "steps"),
    [
        ("CartPole-v1", _cartpole, 8),
        ("Pendulum-v1", _pendulum, 20),
        ("Acrobot-v1", _acrobot, 20),
        ("MountainCar-v0", _mountain_car, 20),
        ("MountainCarContinuous-v0", _continuous_car, 20),
        ("HalfCheetah-v5", _mujoco("HalfCheetah-v5", 1), 5),
        ("HalfCheetah-v4", _mujoco("HalfCheetah-v4", 1), 5),
        ("Hopper-v5", _mujoco("Hopper-v5", 1), 5),
        ("Walker2d-v5", _mujoco("Walker2d-v5", 1), 5),
        ("Swimmer-v5", _mujoco("Swimmer-v5", 2), 5),
        ("Ant-v5", _mujoco("Ant-v5", 2), 3),
    ],
)
def test_steps_are_those_of_gymnasium(env_id: str, from_obs: Callable[[np.ndarray], Any], steps: int) -> None:
    pytest.importorskip("envpool")
    if "gymnasium.envs.mujoco" in str(gym.spec(env_id).entry_point):
        pytest.importorskip("mujoco")
    with _env(env_id) as env:
        obs: Any = env.reset([1, 2, 3])[0]
        assert obs.dtype == env.observation_space.dtype
        assert (env.observation_space, env.action_space) == check_environment(env_id, {})
        twins = [from_obs(row) for row in obs]
        env.action_space.seed(0)
        for _ in range(steps):
            actions = np.stack([env.action_space.sample() for _ in range(3)])
            batch: Any = env.step(actions)
            expected = [twin.step(action) for twin, action in zip(twins, actions, strict=True)]
            np.testing.assert_allclose(batch.final_obs, np.stack([step[0] for step in expected]), atol=2e-4, rtol=1e-3)
            np.testing.assert_allclose(batch.reward, [step[1] for step in expected], atol=1e-3, rtol=1e-3)
            assert batch.terminated.tolist() == [step[2] for step in expected]
            assert not batch.truncated.any()


def test_episodes_end_in_the_step_that_ends_them() -> None:
    pytest.importorskip("envpool")
    limit = 8
    with _env("CartPole-v1", max_episode_steps=limit) as env:
        obs: Any = env.reset([3, 4, 5])[0]  # the first pole falls at the very step of the limit
        lengths, both = np.zeros(3, int), 0
        for _ in range(60):
            batch: Any = env.step(np.ones(3, np.int64))
            twins = [_cartpole(row).step(1) for row in obs]
            # Also at a step that ends an episode: no pair crosses it, and the true final observation is given.
            np.testing.assert_allclose(batch.final_obs, np.stack([twin[0] for twin in twins]), atol=1e-4)
            assert batch.terminated.tolist() == [twin[2] for twin in twins]
            lengths += 1
            assert batch.truncated.tolist() == (lengths >= limit).tolist()
            both += int((batch.terminated & batch.truncated).sum())
            ended = batch.terminated | batch.truncated
            assert [(episode.env_index, episode.length) for episode in batch.episodes] == [
                (int(row), int(lengths[row])) for row in np.flatnonzero(ended)
            ]
            assert np.abs(batch.obs[ended]).max(initial=0.0) <= 0.05
            assert (batch.final_obs is batch.obs) != bool(ended.any())
            lengths[ended] = 0
            obs = batch.obs
        assert both  # EnvPool itself reports these as truncated alone


def test_the_same_seeds_give_the_same_steps_with_any_number_of_threads() -> None:
    pytest.importorskip("envpool")
    results = []
    for threads in (1, 3):
        with _env("Acrobot-v1", num_workers=threads, max_episode_steps=15) as env:
            obs, _ = env.reset([2**32 - 1, 5, 6])
            actions = np.random.default_rng(0).integers(0, 3, (40, 3))
            batches: list[Any] = [env.step(drawn).obs for drawn in actions]
            results.append(np.stack([obs, *(batch.copy() for batch in batches)]))  # type: ignore[list-item]
            for _ in range(20):  # no array that was given is written again
                env.step(actions[0])
            np.testing.assert_array_equal(results[-1][1:], batches)
            again, _ = env.reset([2**32 - 1, 5, 6])
            np.testing.assert_array_equal(again, obs)
            assert env.state_dict() is None
    np.testing.assert_array_equal(results[0], results[1])


def test_another_version_is_never_taken_for_the_one_asked_for() -> None:
    envpool = pytest.importorskip("envpool")
    box, two = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)
    with pytest.raises(ConfigError, match=r"has no `CartPole-v7` \(it has CartPole-v0, CartPole-v1\)"):
        check_pool("CartPole-v7", box, two)
    with pytest.raises(ConfigError, match=r"has Discrete\(2\) where Gymnasium's has Discrete\(3\)"):
        check_pool("CartPole-v1", box, gym.spaces.Discrete(3))
    assert "HalfCheetah-v5" in envpool.list_all_envs()


def test_nan_of_an_environment_ends_the_run() -> None:
    pytest.importorskip("envpool")
    with _env("Pendulum-v1") as env:
        env.reset([1, 2, 3])
        with pytest.raises(NonFiniteError, match=r"environment 1 \(seed 2\) of EnvPool gave NaN"):
            env.step(np.array([[0.0], [np.nan], [0.0]], np.float32))


@pytest.mark.parametrize(
    "env_kwargs",
    [
        {"frame_stack": 4, "episodic_life": True, "fire_reset": True, "reward_sign": True},
        {"max_episode_steps": 37, "fire_reset": True},
    ],
)
def test_atari_games_are_those_of_local_sync(env_kwargs: dict[str, Any]) -> None:
    pytest.importorskip("envpool")
    kwargs = {"atari": True, "repeat_action_probability": 0.0, "noop_max": 1, **env_kwargs}  # one no-op in both
    with _env(GAME, **kwargs) as ours, _env(GAME, backend="local_sync", **kwargs) as theirs:
        np.testing.assert_array_equal(ours.reset([1, 2, 3])[0], theirs.reset([1, 2, 3])[0])
        ends = 0
        for drawn in np.random.default_rng(0).integers(0, 4, (250, 3)):
            one, other = ours.step(drawn), theirs.step(drawn)
            for part in ("obs", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(one, part), getattr(other, part), part)
            # The last frame of a game that is over differs; its value is never used.
            cut = ~one.terminated
            np.testing.assert_array_equal(one.final_obs[cut], other.final_obs[cut])  # type: ignore[index]
            assert one.episodes == other.episodes
            ends += int((one.terminated | one.truncated).sum())
        assert ends
        assert ours.state_dict() is None
