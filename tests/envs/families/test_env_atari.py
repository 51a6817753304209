"""Atari: what the learner sees, and that real games are what is reported."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.families.atari import EpisodicLife, FireReset
from rl_training.envs.make import make_slots, make_vector_env
from rl_training.envs.slot import EnvSlot
from rl_training.envs.snapshots import snapshot
from rl_training.envs.spaces import observation_kind
from rl_training.envs.tracker import EpisodeTracker

FULL = {"atari": True, "frame_stack": 4, "episodic_life": True, "fire_reset": True, "reward_sign": True}


def _slot(env_id: str, mode: Any = "training", **env_kwargs: Any) -> EnvSlot:
    return make_slots(env_id, env_kwargs, mode=mode, count=1)[0]


def test_frames_are_stacked_with_the_newest_last() -> None:
    slot = _slot("ALE/Pong-v5", atari=True, frame_stack=4)
    assert slot.observation_space == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert observation_kind(slot.observation_space) == "image"
    first, _ = slot.reset(0)
    np.testing.assert_array_equal(first, np.broadcast_to(first[-1], (4, 84, 84)))
    second = slot.step(2).obs
    np.testing.assert_array_equal(second[:-1], first[1:])


def test_colour_frames_are_stacked_as_channels_of_one_image() -> None:
    slot = _slot("ALE/Pong-v5", atari=True, frame_stack=2, grayscale=False)
    assert slot.observation_space.shape == (6, 84, 84)
    obs, _ = slot.reset(0)
    assert obs.shape == (6, 84, 84)
    assert observation_kind(slot.observation_space) == "image"


def test_one_step_is_frame_skip_frames_and_the_limit_counts_steps() -> None:
    slot = _slot("ALE/Pong-v5", atari=True, frame_skip=3, noop_max=0, max_episode_steps=7)
    slot.reset(0)
    game: Any = slot.env.unwrapped
    start = game.ale.getEpisodeFrameNumber()
    flags = [slot.step(0)[2:4] for _ in range(7)]
    assert game.ale.getEpisodeFrameNumber() - start == 21
    assert [bool(truncated) for _, truncated in flags] == [False] * 6 + [True]
    assert not any(terminated for terminated, _ in flags)


def test_episodes_are_whole_games_with_raw_rewards_whatever_the_learner_sees() -> None:
    env = make_vector_env("SpaceInvadersNoFrameskip-v4", FULL, mode="training", num_envs=1, backend="local_sync")
    generator = np.random.default_rng(3)
    env.reset([2])
    learner_ends = steps = 0
    rewards: list[float] = []
    episodes: list[Any] = []
    while not episodes and steps < 2000:
        batch = env.step(generator.integers(0, 6, 1))
        steps += 1
        rewards.append(float(batch.reward[0]))
        learner_ends += int(batch.terminated[0])
        episodes += batch.episodes
    (game,) = episodes
    assert set(rewards) == {0.0, 1.0}
    # Three lives: the learner saw two lost ones and the end, the report has one game in points.
    assert learner_ends == 3
    assert game.episode_return > sum(rewards)
    assert game.episode_return % 5 == 0
    assert game.length >= steps


def test_evaluation_plays_whole_games_for_real_rewards() -> None:
    training, evaluation = (_slot("BreakoutNoFrameskip-v4", mode, **FULL) for mode in ("training", "evaluation"))
    assert "EpisodicLife" in str(training.env)
    assert "RewardSign" in str(training.env)
    assert "EpisodicLife" not in str(evaluation.env)
    assert "RewardSign" not in str(evaluation.env)
    assert training.observation_space == evaluation.observation_space
    evaluation.reset(1)
    total, steps = 0.0, 0
    generator = np.random.default_rng(0)
    while True:
        step = evaluation.step(int(generator.integers(4)))
        total += float(step.reward)
        steps += 1
        if step.terminated or step.truncated:
            break
    (game,) = step.episodes
    assert game.episode_return == total
    assert evaluation.env.unwrapped.ale.lives() == 0  # type: ignore[attr-defined]


class _Game(gym.Env[Any, Any]):
    """Loses a life at every action 3, and the game at action 4 or with the last life."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, lives: int = 3, fatal: int = 4) -> None:
        self.start_lives, self.fatal = lives, fatal
        self.lives = lives
        self.played: list[int] = []
        self.resets = 0

    def state_dict(self) -> dict[str, Any]:
        return {"lives": int(self.lives), "played": self.played}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lives, self.played = state["lives"], state["played"]

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "UP", "DOWN", "LEFT"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.lives, self.played, self.resets = self.start_lives, [], self.resets + 1
        return np.zeros(1, np.float32), {"lives": self.lives}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.played.append(action)
        self.lives -= action == 3
        over = action == self.fatal or self.lives == 0
        return np.full(1, len(self.played), np.float32), 5.0, over, False, {"lives": self.lives}


def test_a_life_lost_right_after_a_restore_is_noticed() -> None:
    original, fresh = EpisodicLife(_Game()), EpisodicLife(_Game())
    original.reset(seed=0)
    state = snapshot.take(original)
    assert state is not None
    snapshot.put(fresh, state)
    assert fresh.step(3)[2]
    fresh.reset()
    assert fresh.env.get_wrapper_attr("resets") == 0


def test_a_lost_life_ends_the_episode_and_the_game_goes_on() -> None:
    game = _Game()
    env = EpisodicLife(game)
    env.reset(seed=0)
    assert env.step(3)[2]
    assert game.resets == 1
    obs, _ = env.reset()
    assert (game.resets, game.played, obs[0]) == (1, [3, 0], 2)
    assert env.step(4)[2]
    env.reset()
    assert game.resets == 2


def test_a_seed_always_starts_a_new_game() -> None:
    game = _Game()
    env = EpisodicLife(game)
    env.reset(seed=0)
    env.step(3)
    env.reset(seed=1)
    assert (game.resets, game.lives) == (2, 3)


def test_a_game_that_ends_inside_a_reset_is_still_reported() -> None:
    game = _Game(fatal=0)  # the no-op after a lost life is fatal
    slot = EnvSlot(lambda: EpisodicLife(EpisodeTracker(game)), 0)
    slot.reset(0)
    step = slot.step(3)
    assert step.terminated
    assert not step.episodes
    slot.reset()
    assert game.resets == 2
    (episode,) = slot.step(1).episodes
    assert (episode.episode_return, episode.length) == (10.0, 2)


def test_fire_is_pressed_after_a_reset_and_after_a_lost_life() -> None:
    game = _Game()
    env = FireReset(EpisodicLife(game))
    obs, _ = env.reset(seed=0)
    assert (game.played, obs[0]) == ([1], 1)
    env.step(3)
    env.reset()
    assert game.played == [1, 3, 0, 1]


def test_fire_that_ends_the_game_is_not_pressed_again() -> None:
    game = _Game(fatal=1)
    FireReset(game).reset(seed=0)
    assert (game.resets, game.played) == (2, [])


def test_wrappers_of_the_agents_view_work_without_atari() -> None:
    slot = _slot("Pendulum-v1", frame_stack=3, reward_sign=True, max_episode_steps=5)
    obs, _ = slot.reset(0)
    assert obs.shape == (3, 3)
    steps = [slot.step(np.zeros(1, np.float32)) for _ in range(5)]
    assert {float(step.reward) for step in steps} == {-1.0}
    (episode,) = steps[-1].episodes
    assert episode.length == 5
    assert episode.episode_return not in (-5.0, 0.0)
