"""Hindsight replay: which goals replace the desired one, what they are worth, and that a resume knows the episodes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import assert_same_run, tiny_config, train_with_stops
from rl_training.data.hindsight import GoalTask, HindsightReplay, of_every_goal
from rl_training.data.samplers import UniformSampler
from rl_training.envs.goal_tasks import BitFlip
from rl_training.envs.normalize import Normalizers, ObservationNormalizer, RewardNormalizer
from rl_training.errors import ConfigError
from rl_training.runtime.setup.run_setup import RunSetup
from rl_training.runtime.workflows import train

BOX = spaces.Box(-100, 100, (1,), np.float32)
SPACE = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})
GAMMA = 0.9
HINDSIGHT = {"hindsight": "future", "learning_starts": 20, "batch_size": 8, "buffer_size": 200, "hidden_sizes": [8]}
TASK = GoalTask(
    reward=lambda achieved, desired: np.where(achieved[..., 0] == desired[..., 0], 0.0, -1.0),
    terminated=lambda achieved, desired: achieved[..., 0] == desired[..., 0],
)


def goals(values: list[float], desired: float = 99.0) -> dict[str, np.ndarray]:
    """Return observations of one environment per value, which is also the goal it has achieved."""
    column = np.array(values, np.float32)[:, None]
    return {"observation": column, "achieved_goal": column, "desired_goal": np.full_like(column, desired)}


def make_replay(
    strategy: str, *, ratio: float = 1.0, num_envs: int = 2, capacity: int = 64, normalizers: Normalizers | None = None
) -> HindsightReplay:
    return HindsightReplay(
        SPACE,
        np.zeros(num_envs, np.int64),
        UniformSampler(capacity),
        task=TASK,
        strategy=strategy,
        ratio=ratio,
        gamma=GAMMA,
        num_envs=num_envs,
        capacity=capacity,
        normalizers=normalizers,
    )


def fill(replay: HindsightReplay, steps: int, ends: dict[int, list[int]], *, begin: bool = True) -> None:
    """Step two environments whose state counts 10, 11, ... and 20, 21, ...; `ends` maps a step to those that end."""
    states = [10.0, 20.0]
    if begin:
        replay.begin(goals(states))
    for step in range(steps):
        states = [state + 1 for state in states]
        truncated = np.array([env in ends.get(step, []) for env in range(2)])
        replay.add(np.zeros(2, np.int64), np.full(2, -1.0), np.zeros(2, bool), truncated, goals(states), goals(states))


def drawn_goals(replay: HindsightReplay, row: int) -> set[float]:
    """Return every goal that many draws give one row."""
    gathered = replay.gather(np.full((400,), row), np.random.default_rng(0))
    np.testing.assert_array_equal(gathered["observation"]["desired_goal"], gathered["next_observation"]["desired_goal"])
    return set(gathered["observation"]["desired_goal"][:, 0].tolist())


# Both environments end at step 3: the achieved goals after each step are 11, 12, 13, 14 and 21, 22, 23, 24.
# Rows come step by step, the first environment before the second: row 2 is step 1 of environment 0.


def test_final_takes_the_last_goal_of_the_same_episode():
    replay = make_replay("final")
    fill(replay, 4, {3: [0, 1]})
    assert drawn_goals(replay, 2) == {14.0}
    assert drawn_goals(replay, 3) == {24.0}


def test_future_takes_goals_reached_at_this_step_or_later():
    replay = make_replay("future")
    fill(replay, 4, {3: [0, 1]})
    assert drawn_goals(replay, 2) == {12.0, 13.0, 14.0}
    assert drawn_goals(replay, 6) == {14.0}


def test_episode_takes_goals_of_the_whole_episode():
    replay = make_replay("episode")
    fill(replay, 4, {3: [0, 1]})
    assert drawn_goals(replay, 5) == {21.0, 22.0, 23.0, 24.0}


def test_goals_never_come_from_another_episode_or_environment():
    replay = make_replay("episode")
    fill(replay, 6, {1: [0], 3: [1], 5: [0, 1]})
    assert drawn_goals(replay, 0) == {11.0, 12.0}  # environment 0 ended after two steps
    assert drawn_goals(replay, 4) == {13.0, 14.0, 15.0, 16.0}  # and went on with another episode
    assert drawn_goals(replay, 1) == {21.0, 22.0, 23.0, 24.0}


def test_an_episode_in_progress_keeps_its_goal():
    replay = make_replay("future")
    fill(replay, 3, {})
    assert drawn_goals(replay, 0) == {99.0}


def test_reward_and_discount_are_those_of_the_new_goal():
    replay = make_replay("final")
    fill(replay, 4, {3: [0, 1]})
    gathered = replay.gather(np.array([6, 4, 2]), np.random.default_rng(0))
    np.testing.assert_array_equal(gathered["reward"], [0.0, -1.0, -1.0])  # the last step reaches its own final goal
    np.testing.assert_allclose(gathered["discount"], [0.0, GAMMA, GAMMA])


def test_the_ratio_is_the_share_of_replaced_goals():
    replay = make_replay("final", ratio=0.25)
    fill(replay, 4, {3: [0, 1]})
    gathered = replay.gather(np.full(4000, 2), np.random.default_rng(0))
    assert (gathered["observation"]["desired_goal"] == 14.0).mean() == pytest.approx(0.25, abs=0.03)


def test_what_is_stored_is_not_changed_by_drawing():
    replay = make_replay("final")
    fill(replay, 4, {3: [0, 1]})
    replay.gather(np.arange(8), np.random.default_rng(0))
    replay.ratio = 0.0
    assert drawn_goals(replay, 0) == {99.0}
    np.testing.assert_array_equal(replay.gather(np.arange(8), np.random.default_rng(0))["reward"], -1.0)


@pytest.mark.parametrize("steps", [6, 40, 75])  # before and after the ring of 64 has wrapped
def test_a_restored_replay_knows_the_same_episodes(steps):
    ends = {step: [0] if step % 3 else [0, 1] for step in range(2, steps, 5)}
    replay, restored = make_replay("episode"), make_replay("episode")
    fill(replay, steps, ends)
    ranges = replay.ranges_since((0, 0))
    for part in ranges:
        restored.restore_rows(part, replay.rows(part))
    restored.load_state_dict(replay.state_dict())
    fill(replay, 6, {5: [0, 1]}, begin=False)
    fill(restored, 6, {5: [0, 1]}, begin=False)
    rows = np.arange(replay.oldest, replay.count).repeat(20) % 64
    first, second = (each.gather(rows, np.random.default_rng(3)) for each in (replay, restored))
    np.testing.assert_array_equal(first["observation"]["desired_goal"], second["observation"]["desired_goal"])


def normalised(strategy: str, ratio: float) -> HindsightReplay:
    """Return a replay of two finished episodes, with statistics of everything in it."""
    normalizers = Normalizers(ObservationNormalizer(SPACE, clip=10.0), RewardNormalizer(2, GAMMA, clip=10.0))
    assert normalizers.observation is not None
    assert normalizers.reward is not None
    for state in range(10, 15):
        normalizers.observation.update(goals([state, state + 10], desired=state + 1))
        normalizers.reward.update(np.array([-1.0, 0.0]), np.zeros(2, bool))
    replay = make_replay(strategy, ratio=ratio, normalizers=normalizers)
    fill(replay, 4, {3: [0, 1]})
    return replay


def test_goals_are_replaced_as_they_are_and_scaled_afterwards():
    replay = normalised("final", 1.0)
    (batch,), rows = replay.sample(40, np.random.default_rng(0), torch.device("cpu"))
    raw = replay.gather(rows[0], np.random.default_rng(0))
    assert set(raw["observation"]["desired_goal"][:, 0].tolist()) == {14.0, 24.0}
    for ours, theirs in ((batch.observation, raw["observation"]), (batch.next_observation, raw["next_observation"])):
        for key, part in replay.normalizers.scale_observation(theirs).items():
            np.testing.assert_array_equal(ours[key], part)
            assert part.dtype == np.float32
    # The last step of an episode reaches its own final goal; whatever is missed pays the same, replaced or not.
    kept = normalised("final", 0.0).sample(40, np.random.default_rng(0), torch.device("cpu"))[0][0]
    (missed,) = replay.normalizers.scale_reward(np.array([-1.0])).tolist()
    assert missed != -1.0
    assert set(batch.reward.tolist()) == {0.0, missed}
    assert set(kept.reward.tolist()) == {missed}


def test_the_sign_of_a_reward_is_that_of_a_replaced_goal_too(tmp_path):
    config = tiny_config(
        tmp_path,
        algo="dqn",
        env_id="test_hindsight:DearBitFlip-v0",
        algo_kwargs=HINDSIGHT,
        env_kwargs={"reward_sign": True},
    )
    task = RunSetup(config, None).goal_task()
    zero, one = np.zeros((1, 10), np.float32), np.ones((1, 10), np.float32)
    assert [task.reward(zero, goal).item() for goal in (zero, one)] == [0.0, -1.0]


class DearBitFlip(BitFlip):
    """Pays -5 for every goal that is missed."""

    def compute_reward(self, achieved, desired, info):
        return 5 * super().compute_reward(achieved, desired, info)


if "DearBitFlip-v0" not in gym.registry:
    gym.register("DearBitFlip-v0", entry_point="test_hindsight:DearBitFlip", max_episode_steps=15)


def test_observations_without_goals_are_refused_with_the_repair(tmp_path):
    config = tiny_config(tmp_path, algo="dqn", algo_kwargs=HINDSIGHT)
    with pytest.raises(ConfigError, match="set hindsight to none"):
        train(config)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("algo", "task"), [("dqn", "BitFlip-v0"), ("sac", "PointReach-v0"), ("td3", "PointReach-v0")])
def test_a_stopped_run_with_hindsight_ends_as_one_that_was_not(algo, task, tmp_path):
    def config(name):
        env_id = f"rl_training.envs.goal_tasks:{task}"
        return tiny_config(
            tmp_path / name,
            algo=algo,
            env_id=env_id,
            total_timesteps=120,
            algo_kwargs=HINDSIGHT,
            env_kwargs={"normalize_observation": algo == "td3", "normalize_reward": algo != "dqn"},
        )

    assert_same_run(train_with_stops(config("stopped"), [13, 31]), train(config("straight")).run_dir)


def test_a_function_of_one_pair_is_asked_for_each_and_one_of_all_pairs_once():
    achieved, desired = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]), np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 2.1]])
    calls = []

    def of_all(one, other, info):
        calls.append(one.shape)
        return np.linalg.norm(one - other, axis=-1) < 0.5

    def of_one(one, other, info):  # as the mazes of Gymnasium-Robotics: wrong for several
        return bool(np.linalg.norm(one - other) < 0.5)

    def never(one, other, info):  # as Fetch
        return False

    assert of_every_goal(of_all, achieved, desired).tolist() == [True, False, True]
    assert calls == [(3, 2)]
    assert of_every_goal(of_one, achieved, desired).tolist() == [True, False, True]
    assert of_every_goal(never, achieved, desired).tolist() == [False] * 3
    assert of_every_goal(of_one, achieved[:1], desired[:1]).tolist() == [True]
