"""Running statistics, what they are applied to, and that they travel with the run."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.envs.make import make_vector_env
from rl_training.envs.normalize import (
    NormalizedVectorEnv,
    ObservationNormalizer,
    RewardNormalizer,
    RunningMoments,
    normalizers_of,
    with_normalization,
)
from rl_training.envs.vector import VectorEnv
from rl_training.errors import CheckpointError
from rl_training.experiment.configuration.env_params import EnvParams

NUM_ENVS = 3


@given(sizes=st.lists(st.integers(min_value=1, max_value=6), min_size=1, max_size=8), shift=st.floats(-1e3, 1e3))
@settings(max_examples=25)
def test_moments_equal_those_of_all_rows_together(sizes: list[int], shift: float) -> None:
    generator = np.random.default_rng(sum(sizes))
    batches = [generator.normal(shift, 3.0, (size, 2)) for size in sizes]
    moments = RunningMoments((2,))
    for batch in batches:
        moments.update(batch)
    everything = np.concatenate(batches)
    assert moments.count == len(everything)
    np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.var, everything.var(axis=0), rtol=1e-7, atol=1e-7)


def test_normalising_does_not_update_and_clips() -> None:
    normalizer = ObservationNormalizer(gym.spaces.Box(-np.inf, np.inf, (1,), np.float64), clip=2.0)
    normalizer.update(np.array([[1.0], [3.0]]))
    before = normalizer.state_dict()
    scaled = normalizer(np.array([[2.0], [3.0], [100.0], [-100.0]]))
    assert isinstance(scaled, np.ndarray)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [[0.0], [1.0], [2.0], [-2.0]], atol=1e-6)
    np.testing.assert_array_equal(normalizer(np.array([3.0])), scaled[1])
    assert str(normalizer.state_dict()) == str(before)


def test_images_and_categories_are_left_alone_in_a_dict() -> None:
    space = gym.spaces.Dict(
        {
            "picture": gym.spaces.Box(0, 255, (4, 4), np.uint8),
            "shelf": gym.spaces.Discrete(5),
            "weights": gym.spaces.Box(-5, 5, (2,), np.float32),
        }
    )
    normalizer = ObservationNormalizer(space, clip=10.0)
    obs = {
        "picture": np.full((2, 4, 4), 200, np.uint8),
        "shelf": np.array([1, 4]),
        "weights": np.array([[1, 10], [3, 30]], np.float32),
    }
    normalizer.update(obs)
    scaled = normalizer(obs)
    assert isinstance(scaled, dict)
    assert scaled["picture"] is obs["picture"]
    assert scaled["shelf"] is obs["shelf"]
    np.testing.assert_allclose(scaled["weights"], [[-1, -1], [1, 1]], atol=1e-6)
    assert isinstance(normalizer.normalized_space, gym.spaces.Dict)
    assert normalizer.normalized_space["picture"] == space["picture"]
    assert normalizer.normalized_space["weights"] == gym.spaces.Box(-10, 10, (2,), np.float32)


def test_reward_is_scaled_by_the_deviation_of_the_discounted_return() -> None:
    normalizer = RewardNormalizer(num_envs=2, gamma=0.5, clip=10.0)
    steps = [
        (np.array([1.0, -2.0]), np.array([False, True])),
        (np.array([3.0, 4.0]), np.array([False, False])),
    ]
    scaled = []
    for reward, ended in steps:
        normalizer.update(reward, ended)
        scaled.append(normalizer(reward))
    # Returns: [1, -2], then [1 * 0.5 + 3, 4], because the second environment started anew.
    np.testing.assert_allclose(scaled[0], np.array([1, -2]) / np.std([1, -2]), rtol=1e-6)
    np.testing.assert_allclose(scaled[1], np.array([3, 4]) / np.std([1, -2, 3.5, 4]), rtol=1e-6)
    assert scaled[0].dtype == np.float32


def _make(backend: str = "local_sync", env_id: str = "env_samples:Sample/Diary-v0") -> VectorEnv:
    return make_vector_env(env_id, {}, mode="training", num_envs=NUM_ENVS, backend=backend)


def _normalized(env: VectorEnv) -> NormalizedVectorEnv:
    wrapped = with_normalization(env, EnvParams(normalize_observation=True, normalize_reward=True), gamma=0.9)
    assert isinstance(wrapped, NormalizedVectorEnv)
    return wrapped


def test_statistics_take_each_observation_once_and_never_the_final_one() -> None:
    env, raw = _normalized(_make()), _make()
    env.reset([1, 2, 3])
    seen = [raw.reset([1, 2, 3])[0]]
    for _ in range(20):
        env.step(np.zeros(NUM_ENVS, dtype=int))
        seen.append(raw.step(np.zeros(NUM_ENVS, dtype=int)).obs)
    everything = np.concatenate([np.asarray(obs) for obs in seen])
    assert env.normalizers.observation is not None
    moments = env.normalizers.observation.state_dict()["observation"]
    assert moments["count"] == len(everything)
    np.testing.assert_allclose(moments["mean"], everything.mean(axis=0))
    np.testing.assert_allclose(moments["var"], everything.var(axis=0))


def test_final_observation_is_scaled_like_the_next_one() -> None:
    env, raw = _normalized(_make()), _make()
    env.reset([1, 2, 3])
    raw.reset([1, 2, 3])
    ended = False
    for _ in range(20):
        ours, theirs = env.step(np.zeros(NUM_ENVS, dtype=int)), raw.step(np.zeros(NUM_ENVS, dtype=int))
        assert env.normalizers.observation is not None
        np.testing.assert_array_equal(ours.obs, env.normalizers.observation(theirs.obs))
        np.testing.assert_array_equal(ours.final_obs, env.normalizers.observation(theirs.final_obs))
        assert (ours.final_obs is ours.obs) == (theirs.final_obs is theirs.obs)
        ended |= ours.final_obs is not ours.obs
    assert ended


def test_a_measured_environment_gives_what_it_gets_and_knows_the_same_statistics() -> None:
    params = EnvParams(normalize_observation=True, normalize_reward=True)
    measured, raw, scaled = with_normalization(_make(), params, gamma=0.9, raw=True), _make(), _normalized(_make())
    assert measured.observation_space == raw.observation_space
    for env in (measured, raw, scaled):
        env.reset([1, 2, 3])
    for _ in range(20):
        ours, theirs, _ = (env.step(np.zeros(NUM_ENVS, dtype=int)) for env in (measured, raw, scaled))
        for our, their in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(our, their)
    assert str(normalizers_of(measured).state_dict()) == str(scaled.normalizers.state_dict())


@pytest.mark.parametrize("backend", ["local_sync", "vector"])
def test_episodes_keep_their_raw_returns(backend: str) -> None:
    env, raw = _normalized(_make(backend, "CartPole-v1")), _make(backend, "CartPole-v1")
    env.reset([1, 2, 3])
    raw.reset([1, 2, 3])
    generator = np.random.default_rng(0)
    finished = 0
    for _ in range(60):
        actions = generator.integers(0, 2, NUM_ENVS)
        ours, theirs = env.step(actions), raw.step(actions)
        assert ours.episodes == theirs.episodes
        np.testing.assert_array_equal(ours.terminated, theirs.terminated)
        finished += len(ours.episodes)
    assert finished


def test_a_restored_run_continues_identically() -> None:
    env, fresh = _normalized(_make()), _normalized(_make())
    env.reset([1, 2, 3])
    for _ in range(10):
        env.step(np.ones(NUM_ENVS, dtype=int))
    state = env.state_dict()
    assert state is not None
    fresh.load_state_dict(state)
    for _ in range(10):
        ours, theirs = env.step(np.ones(NUM_ENVS, dtype=int)), fresh.step(np.ones(NUM_ENVS, dtype=int))
        for our, their in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(our, their)


def test_statistics_can_be_kept_where_the_environment_cannot() -> None:
    env = _normalized(_make(env_id="env_samples:Sample/Forgetful-v0"))
    env.reset([1, 2, 3])
    assert env.state_dict() is None
    fresh = _normalized(_make(env_id="env_samples:Sample/Forgetful-v0"))
    fresh.normalizers.load_state_dict(env.normalizers.state_dict())
    assert str(fresh.normalizers.state_dict()) == str(env.normalizers.state_dict())


def test_without_normalisation_nothing_is_wrapped() -> None:
    env = _make()
    assert with_normalization(env, EnvParams(), gamma=0.9) is env


@pytest.mark.parametrize(
    "state",
    [
        {"observation": {"mean": np.zeros(2), "var": np.ones(2), "count": 1}},
        {"other": {"mean": np.zeros(3), "var": np.ones(3), "count": 1}},
    ],
)
def test_statistics_of_another_environment_are_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        ObservationNormalizer(gym.spaces.Box(-1, 1, (3,)), clip=10.0).load_state_dict(state)
