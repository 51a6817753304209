"""SAC and its relatives, TD3 and DDPG are wired up, leave what they promise and repeat themselves exactly."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import assert_same_run, final_state, json_rows, weights
from off_policy_runs import COMMON_METRICS, STEPS, last_row, tiny_run, train_rows, train_tiny
from rl_training.algorithms.sac import SAC
from rl_training.cli import main
from rl_training.data.replay import ReplayBatch
from rl_training.errors import ConfigError
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, train

SOFT = {"loss_critic", "loss_actor", "entropy", "temperature"}
METRICS = {
    "sac": SOFT,
    "tqc": SOFT,
    "crossq": SOFT,
    "redq": SOFT,
    "droq": SOFT,
    "discrete_sac": SOFT,
    "td3": {"loss_critic", "loss_actor"},
    "ddpg": {"loss_critic", "loss_actor"},
}
CONTINUOUS = ["sac", "tqc", "crossq", "td3", "ddpg"]


def _task(algo: str) -> str:
    return "toy_envs:Toy/Discrete-v0" if algo == "discrete_sac" else "toy_envs:Toy/Box-v0"


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[ReplayBatch]:
    """Every batch that SAC learns from."""
    kept: list[ReplayBatch] = []
    original = SAC.update

    def watched(self: SAC, batch: ReplayBatch, *arguments: Any) -> Any:
        kept.append(copy.deepcopy(batch))
        return original(self, batch, *arguments)

    monkeypatch.setattr(SAC, "update", watched)
    return kept


# -- spaces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", METRICS)
def test_every_algorithm_trains_and_hands_over_its_policy(tmp_path: Path, algo: str) -> None:
    result = train_tiny(tmp_path, algo, _task(algo))
    assert last_row(result.run_dir).keys() >= COMMON_METRICS | METRICS[algo]
    policy = load_policy(result.run_dir)
    observation = policy.observation_space.sample()
    action = policy.predict(observation)
    assert policy.action_space.contains(action)
    assert np.array_equal(policy.predict(observation), action)
    sampled = [policy.predict(np.stack([observation] * 20), deterministic=False, seed=seed) for seed in (1, 1, 2)]
    assert np.array_equal(sampled[0], sampled[1])
    assert not np.array_equal(sampled[0], sampled[2])
    again = [evaluate(result.run_dir, num_episodes=3).metrics["eval_return_mean"] for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("algo", "view"),
    [("sac", "image"), ("sac", "dict"), ("tqc", "dict"), ("crossq", "dict_with_image"), ("td3", "dict_with_image")],
)
def test_images_and_dicts_train(tmp_path: Path, algo: str, view: str) -> None:
    changes: dict[str, Any] = {"algo_kwargs": {"train_interval": 16}, "env_kwargs": {"observation": view}}
    result = train_tiny(tmp_path, algo, "toy_envs:Toy/Box-v0", **changes)
    policy = load_policy(result.run_dir)
    assert policy.action_space.contains(policy.predict(policy.observation_space.sample()))
    assert any("convolutions" in name for name in weights(result.run_dir)) is ("image" in view)


@pytest.mark.parametrize("kind", ["Image", "Dict"])
def test_discrete_sac_takes_images_and_dicts(tmp_path: Path, kind: str) -> None:
    train_tiny(tmp_path, "discrete_sac", f"toy_envs:Toy/{kind}-v0", algo_kwargs={"train_interval": 16})


def test_discrete_sac_never_takes_illegal_actions(tmp_path: Path) -> None:
    # The environment raises at an illegal action, in training and in evaluation.
    result = train_tiny(tmp_path, "discrete_sac", "toy_envs:Toy/MaskedDiscrete-v0")
    evaluate(result.run_dir, num_episodes=2, stochastic=True)


def test_stacked_frames_train_a_continuous_policy(tmp_path: Path, batches: list[ReplayBatch]) -> None:
    changes: dict[str, Any] = {"algo_kwargs": {"train_interval": 16}, "env_kwargs": {"frame_stack": 2}}
    train_tiny(tmp_path, "sac", "corridor_envs:Corridor/FramesBox-v0", **changes)
    for batch in batches:
        assert isinstance(batch.observation, torch.Tensor)
        assert isinstance(batch.next_observation, torch.Tensor)
        assert batch.next_observation[:, 0].equal(batch.observation[:, 1])


# -- actions -------------------------------------------------------------------------------------


def test_actions_are_stored_as_they_were_scaled(tmp_path: Path, batches: list[ReplayBatch]) -> None:
    train_tiny(tmp_path, "sac", "corridor_envs:Corridor/Box-v0", algo_kwargs={"gamma": 0.5})
    for batch in batches:
        assert batch.action.shape == (8, 1)
        assert batch.action.abs().max() <= 1
        # The bounds are -1 and 3, and whatever lies above the middle goes forward.
        left = batch.action[:, 0] <= 0
        assert left.equal(batch.reward.isclose(torch.tensor(0.2)))
        assert batch.discount.equal(torch.where(batch.reward > 0, 0.0, 0.5))


def test_pendulum_bootstraps_where_the_clock_cuts_it(tmp_path: Path, batches: list[ReplayBatch]) -> None:
    changes: dict[str, Any] = {"algo_kwargs": {"gamma": 0.5}, "env_kwargs": {"max_episode_steps": 4}}
    train_tiny(tmp_path, "sac", "Pendulum-v1", **changes)
    for batch in batches:
        assert isinstance(batch.observation, torch.Tensor)
        assert isinstance(batch.next_observation, torch.Tensor)
        assert (batch.discount == 0.5).all()
        # One step of physics lies between a state and its successor, never a reset.
        angle, following = (torch.atan2(seen[:, 1], seen[:, 0]) for seen in (batch.observation, batch.next_observation))
        expected = angle + 0.05 * batch.next_observation[:, 2]
        assert (torch.cos(following - expected) > 0.9999).all()


def test_state_dependent_exploration_trains(tmp_path: Path) -> None:
    settings = {"use_sde": True, "sde_sample_freq": 4}
    train_tiny(tmp_path, "sac", "toy_envs:Toy/Box-v0", algo_kwargs=settings)


def test_the_temperature_is_learned_or_fixed(tmp_path: Path) -> None:
    learned = train_tiny(tmp_path / "learned", "sac", "toy_envs:Toy/Box-v0", algo_kwargs={"learning_rate": 0.01})
    shown = [row["temperature"] for row in train_rows(learned.run_dir) if "temperature" in row]
    assert len(set(shown)) == len(shown) > 1
    fixed = train_tiny(tmp_path / "fixed", "sac", "toy_envs:Toy/Box-v0", algo_kwargs={"temperature": 0.3})
    assert last_row(fixed.run_dir)["temperature"] == pytest.approx(0.3)


def test_gradient_steps_per_environment_step_are_those_asked_for(tmp_path: Path, batches: list[ReplayBatch]) -> None:
    settings = {"train_interval": 4, "gradient_steps": 6}
    result = train_tiny(tmp_path, "sac", "toy_envs:Toy/Box-v0", algo_kwargs=settings)
    assert len(batches) == result.metrics["update_count"] == 6 * (STEPS - 16) // 4


def test_delayed_actor_losses_are_averaged_over_the_updates_that_have_one(tmp_path: Path) -> None:
    settings = {"train_interval": 4, "gradient_steps": 3, "policy_delay": 3}
    result = train_tiny(tmp_path, "td3", "toy_envs:Toy/Box-v0", algo_kwargs=settings)
    assert all("loss_actor" in row for row in train_rows(result.run_dir)[1:])


# -- repeating -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", METRICS)
def test_a_seed_repeats_bit_for_bit_and_another_differs(tmp_path: Path, algo: str) -> None:
    first = train_tiny(tmp_path / "first", algo, _task(algo))
    torch.manual_seed(12345)  # the global generator decides nothing
    second = train_tiny(tmp_path / "second", algo, _task(algo))
    assert_same_run(first.run_dir, second.run_dir)
    other = train_tiny(tmp_path / "other", algo, _task(algo), seed=8)
    ours, theirs = final_state(first.run_dir), final_state(other.run_dir)
    streams = [path for path in ours if "streams" in path and isinstance(ours[path], torch.Tensor)]
    assert streams
    assert not any(ours[path].equal(theirs[path]) for path in streams)
    assert len(json_rows(first.run_dir / "evaluations.jsonl")) == 2


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", CONTINUOUS)
def test_a_discrete_task_is_refused_and_names_what_fits(tmp_path: Path, algo: str) -> None:
    with pytest.raises(ConfigError) as refused:
        train(tiny_run(tmp_path / "runs", algo, "CartPole-v1"))
    message = str(refused.value)
    assert f"{algo} does not support the Discrete actions of CartPole-v1" in message
    fitting = "a2c, appo, c51, discrete_sac, double_dqn, dqn, efficientzero, gumbel_muzero, impala, muzero, ppo, pqn"
    assert fitting in message
    assert not (tmp_path / "runs").exists()


def test_discrete_sac_refuses_a_continuous_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not support the Box actions.*\bsac\b"):
        train(tiny_run(tmp_path, "discrete_sac", "Pendulum-v1"))


@pytest.mark.parametrize(
    ("algo", "setting", "complaint"),
    [
        ("sac", "learning_starts=100", "leave nothing of total_timesteps 100"),
        ("td3", "buffer_size=16", "batch_size: is larger than the replay"),
        ("sac", "temperature=automatic", "temperature"),
        ("tqc", "dropped_quantiles=25", "must be less than num_quantiles"),
        ("td3", "policy_delay=0", "policy_delay"),
    ],
)
def test_bad_settings_end_with_status_2_and_the_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algo: str, setting: str, complaint: str
) -> None:
    arguments = ["train", "--algo", algo, "--env", "Pendulum-v1", "--total-timesteps", "100"]
    output = ["--output-dir", str(tmp_path / "runs"), "--set", "algo_kwargs.learning_starts=10"]
    assert main([*arguments, *output, "--set", f"algo_kwargs.{setting}"]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_actions_without_bounds_end_with_the_repair(tmp_path: Path, algo: str) -> None:
    with pytest.raises(ConfigError, match="TransformAction"):
        train(tiny_run(tmp_path / "runs", algo, "corridor_envs:Corridor/Boundless-v0"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("algo", "reason"),
    [
        ("redq", "a target of drawn critics has no written-out gradient"),
        ("droq", "an actor of mean values has no written-out gradient"),
    ],
)
def test_acceleration_changes_no_bit_of_what_kernels_do_not_cover(tmp_path: Path, algo: str, reason: str) -> None:
    runs = {mode: train_tiny(tmp_path / mode, algo, _task(algo), acceleration=mode).run_dir for mode in ("auto", "off")}
    assert_same_run(runs["auto"], runs["off"])
    assert read_metadata(runs["auto"])["acceleration"] == {"kernel": None, "reason": reason}
