"""Evaluation: own seeds, real rewards, complete episodes, and nothing changed in training."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from harness import (
    assert_same_state,
    evaluation_rows,
    metric_rows,
    tiny_config,
    weights,
)
from processes import uninterrupted
from rl_training.envs.slot import EnvSlot
from rl_training.errors import AxiomError
from rl_training.runtime.acting.evaluator import evaluate_policy
from rl_training.runtime.acting.policy import Policy, load_policy
from rl_training.runtime.setup.streams import derive_seeds
from rl_training.runtime.workflows import evaluate

FAULTY = "run_samples:Run/Faulty-v0"


def test_evaluation_seeds_are_never_training_seeds(tmp_path, monkeypatch):
    given = []
    reset = EnvSlot.reset

    def noting(slot, seed=None):
        if seed is not None:
            given.append(seed)
        return reset(slot, seed)

    monkeypatch.setattr(EnvSlot, "reset", noting)
    run_dir = uninterrupted(tiny_config(tmp_path, num_envs=3, eval_episodes=5, eval_interval=48, total_timesteps=240))
    evaluation = [row["seed"] for row in evaluation_rows(run_dir)]
    training = derive_seeds(7, "environment", count=3)
    assert len(evaluation) == 25
    assert len(set(evaluation)) == 25
    assert sorted(given) == sorted(evaluation + training)
    assert not set(evaluation) & set(training)
    later = {episode.seed for episode in evaluate(run_dir, num_episodes=5).episodes}
    assert not later & {*evaluation, *training}  # the command's episodes chose neither weights nor the best


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        (
            "Pendulum-v1",
            {"normalize_observation": True, "normalize_reward": True, "reward_sign": True, "clip_reward": 0.5},
        ),
    ],
)
def test_an_evaluation_return_is_the_raw_environments_return(env_id, env_kwargs, tmp_path):
    """Played again in plain Gymnasium by the recorded seeds and the checkpoint's policy."""
    run_dir = uninterrupted(tiny_config(tmp_path, env_id=env_id, env_kwargs=env_kwargs, eval_episodes=3))
    policy = load_policy(run_dir)
    raw_kwargs = {key: value for key, value in env_kwargs.items() if key == "sutton_barto_reward"}
    last = [row for row in evaluation_rows(run_dir) if row["global_step"] == 320]
    assert len(last) == 3
    for row in last:
        env = gym.make(env_id, **raw_kwargs)
        observation, _ = env.reset(seed=row["seed"])
        total, length, ended = 0.0, 0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(policy.predict(observation))
            total, length, ended = total + float(reward), length + 1, terminated or truncated
        env.close()
        assert row["length"] == length
        assert row["return"] == pytest.approx(total, rel=1e-4)
        assert not row["capped"]
    final = metric_rows(run_dir)[-1]
    returns = np.array([row["return"] for row in last])
    assert final["event"] == "eval"
    assert final["eval_return_mean"] == pytest.approx(returns.mean())
    assert final["eval_return_std"] == pytest.approx(returns.std())
    assert (final["eval_return_min"], final["eval_return_max"]) == (returns.min(), returns.max())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"env_id": "Pendulum-v1", "env_kwargs": {"normalize_observation": True, "normalize_reward": True}},
        {"env_id": "Taxi-v4"},
    ],
)
def test_evaluating_changes_nothing_in_training(changes, tmp_path):
    changes = {**changes, "env_kwargs": {**changes.get("env_kwargs", {}), "max_episode_steps": 50}}
    often = tiny_config(tmp_path / "often", eval_interval=32, eval_episodes=3, **changes)
    never = tiny_config(tmp_path / "never", eval_interval=None, eval_episodes=0, **changes)
    one, other = uninterrupted(often), uninterrupted(never)
    assert_same_state(weights(one), weights(other))
    training = [[row for row in metric_rows(run_dir) if row["event"] == "train"] for run_dir in (one, other)]
    assert training[0] == training[1]
    assert evaluation_rows(other) == []


def test_the_normaliser_is_frozen_while_evaluating(tmp_path):
    env_kwargs = {"normalize_observation": True, "max_episode_steps": 30}
    config = tiny_config(tmp_path, env_id="Pendulum-v1", env_kwargs=env_kwargs)
    policy = load_policy(uninterrupted(config))
    assert policy.normalizer is not None
    before = policy.normalizer.state_dict()["observation"]
    assert before["count"] == 320 + 2  # every training observation and no other
    evaluate_policy(policy, config, [1, 2, 3])
    after = policy.normalizer.state_dict()["observation"]
    assert after["count"] == before["count"]
    np.testing.assert_array_equal(after["mean"], before["mean"])


def test_every_seed_gets_one_complete_episode_in_order(tmp_path):
    """More episodes than run at once; short ones do not crowd out long ones."""
    config = tiny_config(tmp_path, total_timesteps=64)
    policy = load_policy(uninterrupted(config))
    seeds = list(range(40))
    together = evaluate_policy(policy, config, seeds)
    assert [episode.seed for episode in together] == seeds
    alone = [evaluate_policy(policy, config, [seed])[0] for seed in seeds[::8]]
    assert alone == together[::8]


def test_an_endless_episode_is_capped_marked_and_said_aloud(tmp_path, caplog):
    config = tiny_config(tmp_path, total_timesteps=64)
    policy = load_policy(uninterrupted(config))
    (episode,) = evaluate_policy(policy, config, [1], step_cap=5)
    assert (episode.length, episode.capped) == (5, True)
    assert "1 of 1 evaluation episodes did not end and were cut off after 5 steps" in caplog.text


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        ("text", "is of <U4; the policy expects float32"),
        ({"a": 1}, "is of object; the policy expects float32"),
        (None, "is of object; the policy expects float32"),
        ([0.0, 0.0], "has shape (2,); the policy expects (4,), or a batch"),
        ([[0.0], [0.0, 0.0]], "cannot be read as an array of float32"),
        ([0.0, 0.0, 0.0, np.nan], "holds NaN or infinity; give finite numbers"),
        (np.full((2, 4), -np.inf), "holds NaN or infinity; give finite numbers"),
    ],
)
def test_a_policy_refuses_an_observation_it_cannot_read(observation, reason, tmp_path):
    policy = load_policy(uninterrupted(tiny_config(tmp_path, total_timesteps=64)))
    with pytest.raises(AxiomError, match=r"^the observation ") as caught:
        policy.predict(observation)
    assert reason in str(caught.value)


PARTS = spaces.Dict({"place": spaces.Discrete(3, start=1), "picture": spaces.Box(0, 255, (2,), np.uint8)})


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        ({"place": 1}, "the policy expects a dict with the keys picture, place"),
        ({"place": 4, "picture": [0, 0]}, "the observation `place` holds a number beyond what the policy knows"),
        ({"place": 1, "picture": [0.5, 0.5]}, "the observation `picture` is of float64; the policy expects uint8"),
        ({"place": [1, 2], "picture": [0, 0]}, "entries are not as many each"),
        ({"place": [1, 2], "picture": [[0, 0]]}, "entries are not as many each"),
    ],
)
def test_a_policy_refuses_entries_that_do_not_fit_their_space(observation, reason):
    policy = Policy(None, PARTS, spaces.Discrete(2))
    with pytest.raises(AxiomError) as caught:
        policy.predict(observation)
    assert reason in str(caught.value)


def test_a_policy_takes_one_mask_for_one_observation_and_refuses_any_other_number(tmp_path):
    policy = load_policy(uninterrupted(tiny_config(tmp_path, total_timesteps=64)))
    one, batch = np.zeros(4, np.float32), np.zeros((3, 4), np.float32)
    assert [policy.predict(one, action_mask=mask) for mask in ([1, 0], [0, 1])] == [0, 1]
    assert policy.predict(batch, action_mask=[[1, 0], [0, 1], [1, 0]]).tolist() == [0, 1, 0]
    for observation, mask in ((one, [1, 0, 1]), (batch, [1, 0]), (batch, [[1, 0]])):
        with pytest.raises(AxiomError, match="the action mask has shape"):
            policy.predict(observation, action_mask=mask)


def test_rewards_of_numpy_types_are_summed_in_full_precision(tmp_path):
    config = tiny_config(tmp_path, env_id=FAULTY, env_kwargs={"fault": "float32"})
    row = evaluation_rows(uninterrupted(config))[0]
    assert row["return"] == pytest.approx(3 * float(np.float32(0.1)), abs=1e-12)


def test_stochastic_evaluation_repeats_by_its_seed(tmp_path):
    run_dir = uninterrupted(tiny_config(tmp_path, total_timesteps=64))
    one, two = (evaluate(run_dir, num_episodes=4, seed=5, stochastic=True).episodes for _ in range(2))
    assert one == two
    assert one != evaluate(run_dir, num_episodes=4, seed=6, stochastic=True).episodes
