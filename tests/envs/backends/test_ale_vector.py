"""Atari on ale-py's vector environment: the same games as Gymnasium's, and exact snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from rl_training.envs.families import ale_vector
from rl_training.envs.families.ale_vector import AleGame
from rl_training.envs.lookup import find_spec
from rl_training.envs.make import check_environment, make_vector_env
from rl_training.envs.vector import VectorEnv
from rl_training.envs.workers.backend_choice import resolve_backend
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.configuration.env_params import env_params

pytest.importorskip("ale_py")

GAME = "ALE/Breakout-v5"
FULL = {"frame_stack": 4, "episodic_life": True, "fire_reset": True, "reward_sign": True}
PARTS = ("obs", "reward", "terminated", "truncated", "final_obs")


def _seeds(count: int) -> list[int]:
    """Return seeds that both backends give to the emulator unchanged: ale-py's vector form takes 31 bits."""
    return [seed for seed in range(100) if np.random.SeedSequence(seed).generate_state(2)[1] < 2**31][:count]


@contextmanager
def _env(backend: str, num_envs: int = 2, **env_kwargs: Any) -> Iterator[VectorEnv]:
    kwargs = {"atari": True, "repeat_action_probability": 0.0, **env_kwargs}
    with closing(make_vector_env(GAME, kwargs, mode="training", num_envs=num_envs, backend=backend)) as env:
        yield env


def _play_alike(first: VectorEnv, second: VectorEnv, actions: np.ndarray) -> tuple[int, int]:
    """Step both, compare everything, and return how many episodes terminated and were truncated."""
    terminated = truncated = 0
    for step, drawn in enumerate(actions):
        ours, theirs = first.step(drawn), second.step(drawn)
        for part in PARTS:
            np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part), f"{part} at step {step}")
        assert ours.episodes == theirs.episodes
        terminated += int(ours.terminated.sum())
        truncated += int(ours.truncated.sum())
    return terminated, truncated


@pytest.mark.parametrize(
    ("env_kwargs", "ends"),
    [
        (FULL, ("terminated",)),
        ({"frame_stack": 2, "repeat_action_probability": 0.25}, ("terminated",)),
        ({"fire_reset": True, "frame_skip": 3, "max_episode_steps": 37}, ("truncated",)),
        ({"max_num_frames_per_episode": 403, "screen_size": 42}, ("truncated",)),
        ({"full_action_space": True, "frame_skip": 1, "max_num_frames_per_episode": 900}, ("truncated",)),
    ],
)
def test_without_noops_every_step_is_that_of_local_sync(env_kwargs: dict[str, Any], ends: Sequence[str]) -> None:
    with _env("ale_vector", noop_max=0, **env_kwargs) as ours, _env("local_sync", noop_max=0, **env_kwargs) as theirs:
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        seeds = _seeds(2)
        np.testing.assert_array_equal(ours.reset(seeds)[0], theirs.reset(seeds)[0])
        actions = np.random.default_rng(0).integers(0, 4, (950 if env_kwargs.get("frame_skip") == 1 else 280, 2))
        seen = dict(zip(("terminated", "truncated"), _play_alike(ours, theirs, actions), strict=True))
        assert all(seen[end] for end in ends)


def test_games_start_after_one_to_noop_max_noops() -> None:
    game = AleGame(find_spec(GAME), env_params({"atari": True, "noop_max": 3}, "training"))
    frames = []
    game.reset(seed=0)
    for _ in range(40):
        game.reset()
        game.begin(0)
        frames.append(int(game._game.recv()[4]["episode_frame_number"][0]) - 4)
    assert set(frames) == {1, 2, 3}
    game.close()


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_a_restored_game_continues_identically_with_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, sticky: float
) -> None:
    monkeypatch.setattr(ale_vector, "_STEPS_PER_SEED", 60)  # so that games are seeded anew on the way
    kwargs: dict[str, Any] = {**FULL, "repeat_action_probability": sticky, "max_episode_steps": 45}
    actions = np.random.default_rng(1).integers(0, 4, (250, 2))
    with _env("ale_vector", num_workers=1, **kwargs) as original, _env("ale_vector", num_workers=2, **kwargs) as copy:
        original.reset([7, 8])
        for drawn in actions[:130]:
            original.step(drawn)
        state = original.state_dict()
        assert state is not None
        histories = [slot["env"]["base"]["state"] for slot in state["slots"]]
        assert any(history["seedings"] for history in histories)
        assert any(ale_vector._RESET in history["history"] for history in histories)
        copy.load_state_dict(state)
        assert _play_alike(original, copy, actions[130:])[0]


def test_a_history_with_an_unknown_action_is_refused() -> None:
    with _env("ale_vector", num_envs=1) as env:
        env.reset([0])
        env.step(np.array([1]))
        state: Any = env.state_dict()
        state["slots"][0]["env"]["base"]["state"]["history"] = np.array([1, 200], np.uint8)
        with pytest.raises(CheckpointError, match="action that does not exist"):
            env.load_state_dict(state)


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "repair"),
    [
        ("CartPole-v1", {}, "not an Atari game; use `auto`"),
        (GAME, {}, "set env_kwargs.atari to true"),
        (GAME, {"atari": True, "grayscale": False}, "set env_kwargs.grayscale to true"),
        (GAME, {"atari": True, "difficulty": 1}, "remove env_kwargs.difficulty"),
    ],
)
def test_what_it_cannot_run_is_refused_with_the_repair(env_id: str, env_kwargs: dict[str, Any], repair: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_backend(env_id, env_kwargs, "ale_vector", 2)
    assert repair in str(caught.value)


def test_an_older_ale_py_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ale_vector, "OLDEST", "99.0")
    with pytest.raises(ConfigError, match=r"needs ale-py 99\.0 or newer"):
        resolve_backend(GAME, {"atari": True}, "ale_vector", 2)
    assert resolve_backend(GAME, {"atari": True}, "auto", 2)[0] == "local_sync"


def test_auto_chooses_it_where_nothing_else_can_be_resumed_exactly() -> None:
    sticky, plain = {"atari": True}, {"atari": True, "repeat_action_probability": 0.0}
    assert resolve_backend(GAME, sticky, "auto", 2) == (
        "ale_vector",
        "it alone saves a game with sticky actions exactly",
    )
    backend, reason = resolve_backend(GAME, plain, "auto", 2)
    assert backend == "local_sync"
    assert "`ale_vector` steps on several" in reason


def test_spaces_are_those_the_run_was_checked_with() -> None:
    kwargs = {"atari": True, "frame_stack": 4}
    with _env("ale_vector", num_envs=1, frame_stack=4) as env:
        assert (env.observation_space, env.action_space) == check_environment(GAME, kwargs)
