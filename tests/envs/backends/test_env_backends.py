"""One environment contract, whatever runs the environments: every transition is a real step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.envs.make import make_vector_env
from rl_training.envs.step import StepBatch
from rl_training.envs.vector import VectorEnv
from rl_training.errors import CheckpointError

BACKENDS = ("vector", "local_sync", "local_async")
NUM_ENVS = 3
LIMIT = 18

seeds_strategy = st.lists(
    st.integers(min_value=0, max_value=2**32 - 1), min_size=NUM_ENVS, max_size=NUM_ENVS, unique=True
)


def _make(env_id: str, backend: str, num_envs: int = NUM_ENVS, **env_kwargs: Any) -> VectorEnv:
    if backend == "local_async":
        env_kwargs["num_workers"] = 2
    return make_vector_env(env_id, env_kwargs, mode="training", num_envs=num_envs, backend=backend)


@pytest.fixture(scope="module", params=BACKENDS)
def cartpoles(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    """CartPole with a short time limit, so that both kinds of ends happen."""
    env = _make("CartPole-v1", request.param, max_episode_steps=LIMIT)
    yield env
    env.close()


@pytest.fixture(scope="module", params=("local_sync", "local_async"))
def diaries(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    env = _make("env_samples:Sample/Diary-v0", request.param)
    yield env
    env.close()


def _cartpole_successor(obs: np.ndarray, action: int) -> np.ndarray:
    env = gym.envs.classic_control.CartPoleEnv()
    env.state = np.array(obs, dtype=np.float64)
    return env.step(int(action))[0]


@given(seeds=seeds_strategy, policy=st.integers(min_value=0, max_value=2**32 - 1))
@settings(max_examples=8)
def test_no_pair_crosses_an_episode_and_every_step_is_real(cartpoles: VectorEnv, seeds: list[int], policy: int) -> None:
    generator = np.random.default_rng(policy)
    obs, mask = cartpoles.reset(seeds)
    assert mask is None
    assert isinstance(obs, np.ndarray)
    lengths = np.zeros(NUM_ENVS, dtype=int)
    stored = finished = 0
    for _ in range(40):
        actions = generator.integers(0, 2, NUM_ENVS)
        batch = cartpoles.step(actions)
        assert isinstance(batch.obs, np.ndarray)
        assert isinstance(batch.final_obs, np.ndarray)
        assert batch.reward.dtype == np.float32
        assert batch.terminated.dtype == batch.truncated.dtype == np.bool_
        lengths += 1
        ended = batch.terminated | batch.truncated
        for row in range(NUM_ENVS):
            # The stored pair follows the physics: no reset lies between its two observations.
            np.testing.assert_allclose(batch.final_obs[row], _cartpole_successor(obs[row], actions[row]), atol=1e-5)
            x, _, angle, _ = batch.final_obs[row]
            assert batch.terminated[row] == (abs(x) > 2.4 or abs(angle) > 12 * 2 * math.pi / 360)
            assert batch.truncated[row] == (lengths[row] == LIMIT)
            if ended[row]:
                assert np.abs(batch.obs[row]).max() <= 0.05
            else:
                np.testing.assert_array_equal(batch.obs[row], batch.final_obs[row])
        np.testing.assert_array_equal(batch.reward, 1.0)
        assert {episode.env_index for episode in batch.episodes} == set(np.flatnonzero(ended))
        for episode in batch.episodes:
            assert episode.length == episode.episode_return == lengths[episode.env_index]
            finished += episode.length
        if not ended.any():
            assert batch.final_obs is batch.obs
        lengths[ended] = 0
        stored += NUM_ENVS
        obs = batch.obs
    assert finished + lengths.sum() == stored


@given(seeds=seeds_strategy)
@settings(max_examples=8)
def test_count_of_transitions_equals_count_of_steps_the_environment_took(diaries: VectorEnv, seeds: list[int]) -> None:
    obs, _ = diaries.reset(seeds)
    assert isinstance(obs, np.ndarray)
    np.testing.assert_array_equal(obs, np.zeros((NUM_ENVS, 3)))
    for steps in range(1, 41):
        batch = diaries.step(np.ones(NUM_ENVS, dtype=np.int64))
        assert isinstance(batch.obs, np.ndarray)
        assert isinstance(batch.final_obs, np.ndarray)
        # [episode, step, steps ever taken]: the successor is the next entry of the same episode, even though
        # the environment overwrites its buffer in the reset that follows.
        np.testing.assert_array_equal(batch.final_obs, obs + np.array([0, 1, 1]))
        np.testing.assert_array_equal(batch.final_obs[:, 2], steps)
        np.testing.assert_array_equal(batch.reward, batch.final_obs[:, 1] * 10 + 1)
        ended = batch.terminated | batch.truncated
        after_end = np.stack([obs[:, 0] + 1, np.zeros(NUM_ENVS), batch.final_obs[:, 2]], axis=1)
        np.testing.assert_array_equal(batch.obs, np.where(ended[:, None], after_end, batch.final_obs))
        obs = batch.obs


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
def test_flags_observations_and_rewards_are_those_of_the_raw_environment(backend: str) -> None:
    env = _make("env_samples:Sample/Diary-v0", backend, num_envs=2)
    raw = [gym.make("env_samples:Sample/Diary-v0", disable_env_checker=True) for _ in range(2)]
    seeds, kinds = [4, 9], set()
    first, _ = env.reset(seeds)
    np.testing.assert_array_equal(first, [r.reset(seed=seed)[0] for r, seed in zip(raw, seeds, strict=True)])
    for step in range(120):
        action = step % 3
        batch = env.step(np.full(2, action))
        for row, single in enumerate(raw):
            obs, reward, terminated, truncated, _ = single.step(action)
            np.testing.assert_array_equal(batch.final_obs[row], obs)  # type: ignore[index]
            assert (batch.reward[row], batch.terminated[row], batch.truncated[row]) == (
                reward,
                terminated,
                truncated,
            )
            kinds.add((terminated, truncated))
            if terminated or truncated:
                obs, _ = single.reset()
            np.testing.assert_array_equal(batch.obs[row], obs)  # type: ignore[index]
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}
    env.close()


def _assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            _assert_same(ours[key], theirs[key])
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            _assert_same(our, their)
    else:
        assert ours == theirs


def _rollout(env: VectorEnv, steps: int, seed: int) -> list[StepBatch]:
    env.action_space.seed(seed)
    return [env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)])) for _ in range(steps)]


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("CartPole-v1", {"frame_stack": 2}),
        ("Pendulum-v1", {"max_episode_steps": 20}),
        ("FrozenLake-v1", {}),
        ("env_samples:Sample/Cupboard-v0", {}),
        ("env_samples:Sample/Masked-v0", {}),
    ],
)
def test_workers_are_bit_identical_to_one_process(env_id: str, env_kwargs: dict[str, Any]) -> None:
    sync, workers = (_make(env_id, backend, **env_kwargs) for backend in ("local_sync", "local_async"))
    seeds = [11, 12, 13]
    _assert_same(sync.reset(seeds), workers.reset(seeds))
    batches = _rollout(sync, 50, seed=1)
    _assert_same(batches, _rollout(workers, 50, seed=1))
    assert any(batch.episodes for batch in batches)
    state = sync.state_dict()
    _assert_same(state, workers.state_dict())
    # Each continues from the other's state.
    assert state is not None
    ahead = _rollout(sync, 30, seed=2)
    workers.load_state_dict(state)
    _assert_same(ahead, _rollout(workers, 30, seed=2))
    workers.close()
    sync.close()


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
def test_batches_are_never_written_again(backend: str) -> None:
    env = _make("env_samples:Sample/Diary-v0", backend)
    first, _ = env.reset([1, 2, 3])
    batch = env.step(np.zeros(NUM_ENVS, dtype=np.int64))
    kept = [np.array(part) for part in (first, batch.obs, batch.reward, batch.terminated, batch.final_obs)]
    _rollout(env, 10, seed=0)
    for part, copy in zip((first, batch.obs, batch.reward, batch.terminated, batch.final_obs), kept, strict=True):
        np.testing.assert_array_equal(part, copy)
    env.close()


def test_an_environment_never_sees_its_action_change() -> None:
    env = _make("env_samples:Sample/Cupboard-v0", "local_sync")
    env.reset([0, 1, 2])
    actions = np.ones((NUM_ENVS, 2), dtype=np.int64)
    env.step(actions)
    state = env.state_dict()
    actions[:] = 2
    _assert_same(env.state_dict(), state)


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
def test_action_mask_belongs_to_the_observation_to_act_on(backend: str) -> None:
    env = _make("env_samples:Sample/Masked-v0", backend)
    obs, mask = env.reset([1, 2, 3])
    for _ in range(20):
        assert isinstance(obs, np.ndarray)
        assert mask is not None
        assert mask.dtype == np.bool_
        np.testing.assert_array_equal(mask.argmax(axis=1), obs[:, 1] % 3)
        np.testing.assert_array_equal(mask.sum(axis=1), 1)
        batch = env.step(mask.argmax(axis=1))
        obs, mask = batch.obs, batch.action_mask
    env.close()


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
def test_the_final_mask_belongs_to_the_true_successor(backend: str) -> None:
    env = _make("env_samples:Sample/Masked-v0", backend)
    env.reset([1, 2, 3])
    ends = 0
    for _ in range(30):
        batch = env.step(np.zeros(NUM_ENVS, dtype=int))
        assert isinstance(batch.final_obs, np.ndarray)
        assert batch.final_mask is not None
        np.testing.assert_array_equal(batch.final_mask, np.eye(3, dtype=bool)[batch.final_obs[:, 1].astype(int) % 3])
        ended = batch.terminated | batch.truncated
        ends += ended.sum()
        assert (batch.final_mask is batch.action_mask) is not ended.any()
    assert ends > 10
    env.close()


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
def test_a_row_without_a_mask_allows_everything(backend: str) -> None:
    """These environments give none at a reset and none at an end."""
    env = _make("env_samples:Sample/SometimesMasked-v0", backend)
    _, mask = env.reset([1, 2, 3])
    assert mask is None
    mixed = 0
    for _ in range(40):
        batch = env.step(np.zeros(NUM_ENVS, dtype=int))
        ended = batch.terminated | batch.truncated
        if ended.all():
            assert batch.action_mask is batch.final_mask is None
            continue
        mixed += ended.any()
        for masks in (batch.action_mask, batch.final_mask):
            assert masks is not None
            np.testing.assert_array_equal(masks.sum(axis=1), np.where(ended, 3, 1))
    assert mixed > 5
    env.close()


def test_action_mask_may_come_from_a_method() -> None:
    env = _make("env_samples:Sample/MaskedByMethod-v0", "local_sync")
    _, mask = env.reset([1, 2, 3])
    np.testing.assert_array_equal(mask, [[True, False, True]] * NUM_ENVS)
    np.testing.assert_array_equal(env.step(np.zeros(NUM_ENVS, dtype=int)).action_mask, mask)


def test_vector_cartpole_keeps_the_registered_time_limit() -> None:
    assert _longest_episode(_make("CartPole-v0", "vector")) == 200
    assert _longest_episode(_make("CartPole-v1", "vector", max_episode_steps=60)) == 60


def _longest_episode(env: VectorEnv) -> int:
    """Balance the pole by hand until an episode is cut off."""
    obs, _ = env.reset([1, 2, 3])
    for _ in range(600):
        assert isinstance(obs, np.ndarray)
        batch = env.step((obs @ np.array([0.1, 0.5, 1.0, 1.0]) > 0).astype(np.int64))
        if batch.truncated.any():
            assert not batch.terminated.any()
            return batch.episodes[0].length
        obs = batch.obs
    raise AssertionError("no episode was cut off")


def test_vector_cartpole_gives_the_reward_it_was_asked_for() -> None:
    env = _make("CartPole-v1", "vector", sutton_barto_reward=True)
    env.reset([1, 2, 3])
    batches = _rollout(env, 60, seed=0)
    assert all((batch.reward == -batch.terminated.astype(np.float32)).all() for batch in batches)
    episodes = [episode for batch in batches for episode in batch.episodes]
    assert episodes
    assert all(episode.episode_return == -1 for episode in episodes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_seeds_give_the_same_batches(backend: str) -> None:
    def run(seeds: Sequence[int]) -> Any:
        env = _make("CartPole-v1", backend)
        first = env.reset(seeds)
        batches = _rollout(env, 30, seed=3)
        env.close()
        return first, batches

    ours, again, other = run([1, 2, 3]), run([1, 2, 3]), run([1, 2, 4])
    _assert_same(ours, again)
    assert not np.array_equal(ours[0][0], other[0][0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_for_another_number_of_environments_is_refused(backend: str) -> None:
    env = _make("CartPole-v1", backend)
    env.reset([1, 2, 3])
    state = env.state_dict()
    assert state is not None
    fewer = _make("CartPole-v1", backend, num_envs=2)
    with pytest.raises(CheckpointError, match="2"):
        fewer.load_state_dict(state)
    env.close()
    fewer.close()
