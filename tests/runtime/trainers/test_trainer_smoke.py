"""PPO and A2C are wired up for every kind of space, leave what they promise and repeat themselves bit for bit."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from harness import assert_same_run, final_state, json_rows, tiny_config, weights
from rl_training.algorithms.ppo import PPO
from rl_training.data.rollout import Rollout
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.session import TrainResult
from rl_training.runtime.workflows import evaluate, train

# The names that reports and people's scripts rely on.
TRAIN_METRICS = {
    "global_step",
    "train_return_mean",
    "train_length_mean",
    "steps_per_second",
    "update_count",
    "time_collect",
    "time_update",
    "time_eval",
    "loss_policy",
    "loss_value",
    "loss_total",
    "learning_rate",
    "clip_coef",
    "ent_coef",
}
EVAL_METRICS = {
    "global_step",
    "eval_return_mean",
    "eval_return_std",
    "eval_return_min",
    "eval_return_max",
    "eval_length_mean",
    "time_eval",
}


def _tiny(output_dir: Path, env_id: str, **changes: Any) -> TrainConfig:
    """Return two rollouts of 16 steps in two environments."""
    defaults: dict[str, Any] = {"total_timesteps": 64, "eval_interval": None, "checkpoint_interval": 64}
    return tiny_config(output_dir, env_id=env_id, **{**defaults, **changes})


def _train(output_dir: Path, env_id: str, **changes: Any) -> TrainResult:
    result = train(_tiny(output_dir, env_id, **changes))
    assert result.status == "completed"
    assert result.metrics["global_step"] == 64
    assert np.isfinite(result.metrics["eval_return_mean"])
    assert all(tensor.isfinite().all() for tensor in weights(result.run_dir).values())
    return result


@pytest.fixture
def rollouts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PPO, Rollout]]:
    """Every rollout that is learned from, as it was, with its learner."""
    kept: list[tuple[PPO, Rollout]] = []
    original = PPO.update

    def watched(self: PPO, rollout: Rollout, *arguments: Any, **keywords: Any) -> Any:
        kept.append((self, copy.deepcopy(rollout)))
        return original(self, rollout, *arguments, **keywords)

    monkeypatch.setattr(PPO, "update", watched)
    return kept


# -- spaces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Discrete", "MultiDiscrete", "MultiBinary", "Box"])
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_every_action_space_trains(tmp_path: Path, algo: str, kind: str) -> None:
    changes = {"algo_kwargs": {"num_steps": 8, "hidden_sizes": [8]}} if algo == "a2c" else {}
    # The environment raises at an action that its space does not contain.
    result = _train(tmp_path, f"toy_envs:Toy/{kind}-v0", algo=algo, **changes)
    assert result.run_dir.name.startswith(f"{algo}__")
    policy = load_policy(result.run_dir)
    space = policy.action_space
    for deterministic in (True, False):
        action = policy.predict(policy.observation_space.sample(), deterministic=deterministic)
        assert space.contains(action), action
    assert type(space).__name__ == kind


@pytest.mark.parametrize("kind", ["Image", "Dict", "DictWithImage"])
def test_every_observation_space_trains(tmp_path: Path, kind: str) -> None:
    changes: dict[str, Any] = {"algo_kwargs": {"update_epochs": 1, "minibatch_size": 32}}
    result = _train(tmp_path, f"toy_envs:Toy/{kind}-v0", torch_threads=1, **changes)
    policy = load_policy(result.run_dir)
    assert policy.action_space.contains(policy.predict(policy.observation_space.sample()))


def test_a_discrete_observation_trains(tmp_path: Path) -> None:
    _train(tmp_path, "FrozenLake-v1")


@pytest.mark.parametrize("log_std", ["state_independent", "state_dependent"])
def test_both_kinds_of_deviation_train(tmp_path: Path, log_std: str) -> None:
    result = _train(tmp_path, "Pendulum-v1", algo_kwargs={"log_std": log_std}, env_kwargs={"max_episode_steps": 10})
    per_state = not any("log_std" in name for name in weights(result.run_dir))
    assert per_state is (log_std == "state_dependent")


def test_state_dependent_exploration_trains(tmp_path: Path) -> None:
    settings = {"use_sde": True, "sde_sample_freq": 4}
    _train(tmp_path, "Pendulum-v1", algo_kwargs=settings, env_kwargs={"max_episode_steps": 10})
    with pytest.raises(ConfigError, match="use_sde"):
        train(_tiny(tmp_path, "CartPole-v1", algo_kwargs=settings))


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
def test_what_is_stored_is_what_happened(tmp_path: Path, rollouts: list[tuple[PPO, Rollout]], backend: str) -> None:
    _train(tmp_path, "toy_envs:Toy/Box-v0", execution_backend=backend)
    assert len(rollouts) == 2
    for _, rollout in rollouts:
        assert isinstance(rollout.observation, torch.Tensor)
        # The observation is the target of the action taken on it.
        expected = -(rollout.action.clamp(-1, 1) - rollout.observation).square().sum(dim=-1)
        torch.testing.assert_close(rollout.reward, expected, rtol=1e-4, atol=1e-5)
        # Episodes of eight steps end by termination and by truncation in turn.
        ends = torch.zeros(16, 2, dtype=torch.bool)
        ends[7], ends[15] = True, True
        assert (rollout.terminated | rollout.truncated).equal(ends)
        assert not (rollout.terminated & rollout.truncated).any()
        assert rollout.final_value[~rollout.truncated].abs().max() == 0
        assert rollout.final_value[rollout.truncated].abs().min() > 0


def test_a_truncated_step_is_valued_by_its_true_final_observation(
    tmp_path: Path, rollouts: list[tuple[PPO, Rollout]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pendulum never terminates: where the time limit cuts it, the next stored row belongs to another episode.
    values: list[tuple[torch.Tensor, torch.Tensor]] = []
    original = PPO.values

    def watched(self: PPO, observation: Any) -> torch.Tensor:
        value = original(self, observation)
        values.append((observation.clone(), value.clone()))
        return value

    monkeypatch.setattr(PPO, "values", watched)
    _train(tmp_path, "Pendulum-v1", num_envs=1, algo_kwargs={"num_steps": 64}, env_kwargs={"max_episode_steps": 40})
    ((_, rollout),) = rollouts
    assert isinstance(rollout.observation, torch.Tensor)
    assert rollout.truncated.flatten().nonzero().tolist() == [[39]]
    final_observation, value = values[0]
    assert rollout.final_value[39, 0] == value[0]
    before, after = rollout.observation[39, 0], rollout.observation[40, 0]
    # One step of physics lies between what was seen at step 39 and its successor, not a reset.
    angle = [torch.atan2(seen[1], seen[0]) for seen in (before, final_observation[0], after)]
    expected = angle[0] + 0.05 * final_observation[0, 2]
    assert torch.cos(angle[1] - expected) > 0.9999
    assert not after.allclose(final_observation[0])


# -- masks ---------------------------------------------------------------------------------------


def test_taxi_trains_under_its_action_mask(tmp_path: Path, rollouts: list[tuple[PPO, Rollout]]) -> None:
    _train(tmp_path, "Taxi-v4", env_kwargs={"max_episode_steps": 10})
    for _, rollout in rollouts:
        assert rollout.mask is not None
        assert not rollout.mask.all()
        assert rollout.mask.gather(-1, rollout.action.unsqueeze(-1)).all()


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
@pytest.mark.parametrize("kind", ["Discrete", "MultiDiscrete", "MultiBinary"])
def test_illegal_actions_are_never_taken(
    tmp_path: Path, rollouts: list[tuple[PPO, Rollout]], kind: str, backend: str
) -> None:
    # The environment raises at an illegal action, in training and in evaluation.
    result = _train(tmp_path, f"toy_envs:Toy/Masked{kind}-v0", execution_backend=backend)
    evaluate(result.run_dir, num_episodes=2, stochastic=True)
    entries = {"Discrete": 4, "MultiDiscrete": 7, "MultiBinary": 3}[kind]
    for _, rollout in rollouts:
        assert rollout.mask is not None
        assert rollout.mask.shape == (16, 2, entries)
        assert not rollout.mask.all()


def test_a_mask_that_comes_late_is_not_lost(tmp_path: Path, rollouts: list[tuple[PPO, Rollout]]) -> None:
    _train(tmp_path, "toy_envs:Toy/LateMask-v0")
    for _, rollout in rollouts:
        assert rollout.mask is not None, "acted under a mask and learned without it"
        assert rollout.mask[0].all()
        assert not rollout.mask[1:8].all()


# -- what a run leaves behind --------------------------------------------------------------------


def test_metrics_carry_their_names(tmp_path: Path) -> None:
    result = _train(tmp_path, "toy_envs:Toy/Discrete-v0", eval_interval=32)
    rows = json_rows(result.run_dir / "metrics.jsonl")
    trained = [row for row in rows if row["event"] == "train"]
    evaluated = [row for row in rows if row["event"] == "eval"]
    assert [row["global_step"] for row in trained] == [row["global_step"] for row in evaluated] == [32, 64]
    assert [row["update_count"] for row in trained] == [1, 2]
    assert all(row.keys() >= TRAIN_METRICS for row in trained)
    assert all(row.keys() >= EVAL_METRICS for row in evaluated)
    assert result.metrics.keys() >= TRAIN_METRICS | EVAL_METRICS
    assert trained[-1]["train_length_mean"] == evaluated[-1]["eval_length_mean"] == 8
    last = evaluated[-1]
    assert last["eval_return_min"] <= last["eval_return_mean"] <= last["eval_return_max"]


def test_scheduled_controls_reach_the_update_and_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[dict[str, float]] = []
    original = PPO.update

    def watched(self: PPO, rollout: Rollout, controls: Any, generator: Any) -> Any:
        used.append(dict(controls))
        return original(self, rollout, controls, generator)

    monkeypatch.setattr(PPO, "update", watched)
    settings = {
        "learning_rate": 0.01,
        "learning_rate_schedule": "linear",
        "clip_coef": 0.4,
        "clip_coef_schedule": {"type": "linear", "end": 0.2},
        "ent_coef": 0.1,
        "ent_coef_warmup_steps": 64,
    }
    result = _train(tmp_path, "toy_envs:Toy/Discrete-v0", algo_kwargs=settings)
    assert [controls["learning_rate"] for controls in used] == pytest.approx([0.01, 0.005])
    assert [controls["clip_coef"] for controls in used] == pytest.approx([0.4, 0.3])
    assert [controls["ent_coef"] for controls in used] == pytest.approx([0.0, 0.05])
    rows = [row for row in json_rows(result.run_dir / "metrics.jsonl") if row["event"] == "train"]
    assert [{key: row[key] for key in used[0]} for row in rows] == used
    config = yaml.safe_load((result.run_dir / "config.yaml").read_text(encoding="utf-8"))
    assert config["algo_kwargs"]["learning_rate"] == 0.01


def test_a_run_leaves_its_artifacts(tmp_path: Path) -> None:
    result = _train(tmp_path, "toy_envs:Toy/Discrete-v0", tracking={"tensorboard": True})
    run_dir = result.run_dir
    assert run_dir.parent == tmp_path
    assert run_dir.name.startswith("ppo__")
    assert "Toy-Discrete-v0__seed7__" in run_dir.name
    metadata = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert (metadata["status"], metadata["seed"], metadata["resume_mode"]) == ("completed", 7, "exact")
    assert metadata["latest_metrics"]["global_step"] == 64
    assert metadata["latest_checkpoint"] == "checkpoints/step_64"
    assert result.checkpoint_path == run_dir / "checkpoints" / "step_64"
    assert (run_dir / "checkpoints" / "step_64" / "manifest.json").is_file()
    assert any((run_dir / "tensorboard").iterdir())
    assert len(json_rows(run_dir / "evaluations.jsonl")) == 2
    repeated = load_config(run_dir / "config.yaml")
    assert repeated == _tiny(tmp_path, "toy_envs:Toy/Discrete-v0", tracking={"tensorboard": True})


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_seed_repeats_bit_for_bit_and_another_differs(tmp_path: Path, algo: str) -> None:
    changes: dict[str, Any] = {"algo": algo}
    if algo == "a2c":
        changes["algo_kwargs"] = {"num_steps": 8, "hidden_sizes": [8]}
    first = _train(tmp_path / "first", "CartPole-v1", **changes)
    torch.manual_seed(12345)  # the global generator decides nothing
    second = _train(tmp_path / "second", "CartPole-v1", **changes)
    assert_same_run(first.run_dir, second.run_dir)
    other = _train(tmp_path / "other", "CartPole-v1", seed=8, **changes)
    ours, theirs = final_state(first.run_dir), final_state(other.run_dir)
    # Not only the environments differ: so does every generator, and with them the weights.
    streams = [path for path in ours if "streams" in path]
    assert streams
    assert not any(ours[path].equal(theirs[path]) for path in streams)
    assert not all(tensor.equal(weights(other.run_dir)[name]) for name, tensor in weights(first.run_dir).items())


def test_a_run_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    _train(tmp_path, "CartPole-v1", torch_threads=threads + 1)
    assert torch.get_rng_state().equal(before)
    assert torch.get_num_threads() == threads
