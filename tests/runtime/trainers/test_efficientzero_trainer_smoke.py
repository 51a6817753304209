"""EfficientZero is wired up: value prefixes, consistency, shrinking returns and shifted images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import weights
from off_policy_runs import last_row
from planning_runs import COMMON_METRICS, EXPLORATION, STEPS, tiny_run, train_tiny
from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.errors import ConfigError
from rl_training.experiment.config import algorithm_params
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, train

ALGO = "efficientzero"


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[UnrollBatch]:
    """Every batch that is learned from."""
    kept: list[UnrollBatch] = []
    original = MuZero.update

    def watched(self: MuZero, batch: UnrollBatch, *arguments: Any) -> Any:
        kept.append(batch)
        return original(self, batch, *arguments)

    monkeypatch.setattr(MuZero, "update", watched)
    return kept


@pytest.mark.parametrize("kind", ["Discrete", "Image"])
def test_it_trains_and_hands_over_its_policy(tmp_path: Path, kind: str) -> None:
    result = train_tiny(tmp_path, ALGO, f"toy_envs:Toy/{kind}-v0")
    row = last_row(result.run_dir)
    assert row.keys() >= COMMON_METRICS | EXPLORATION | {"loss_consistency"}
    assert -1 <= row["loss_consistency"] <= 1  # minus a cosine
    names = weights(result.run_dir).keys()
    for part in ("prefix", "projector", "predictor"):
        assert any(part in name for name in names)
    policy = load_policy(result.run_dir)
    observation = policy.observation_space.sample()
    choices: list[dict[str, Any]] = [{}, {"num_simulations": 4}]
    for options in choices:
        action = policy.predict(observation, **options)
        assert policy.action_space.contains(action)
        assert all(policy.predict(observation, **options) == action for _ in range(3))
    again = [evaluate(result.run_dir, num_episodes=2).metrics["eval_return_mean"] for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_number_of_environments_changes_no_number_of_updates(tmp_path: Path, num_envs: int) -> None:
    result = train_tiny(tmp_path, ALGO, "FrozenLake-v1", num_envs=num_envs)
    assert result.metrics["update_count"] == (STEPS - 16) // 4


def test_illegal_actions_are_never_taken_nor_recommended(tmp_path: Path, batches: list[UnrollBatch]) -> None:
    train_tiny(tmp_path, ALGO, "toy_envs:Toy/MaskedDiscrete-v0")
    for batch in batches:
        known = batch.policy_mask.bool()
        assert (batch.policy[known] == 0).any(dim=-1).all()  # in this task something is always illegal
        torch.testing.assert_close(batch.policy[known].sum(-1), torch.ones(int(known.sum())))


def test_rewards_of_a_batch_are_sums_and_successors_what_came(tmp_path: Path, batches: list[UnrollBatch]) -> None:
    train_tiny(tmp_path, ALGO, "CartPole-v1", algo_kwargs={"value_prefix_horizon": 2, "reanalyze_ratio": 0.0})
    for batch in batches:
        whole = batch.successor_mask.bool().all(0)  # windows without an end: every step pays 1
        assert (batch.reward[:, whole] == torch.tensor([[1.0], [2.0], [1.0]])).all()
        assert isinstance(batch.successor, torch.Tensor)
        assert batch.successor.shape == (3 * 8, 4)
    assert any(batch.successor_mask.bool().all(0).any() for batch in batches)


def pictures(batches: list[UnrollBatch]) -> torch.Tensor:
    return torch.cat([batch.observation for batch in batches if isinstance(batch.observation, torch.Tensor)])


def test_images_are_shifted_where_asked_and_only_there(tmp_path: Path, batches: list[UnrollBatch]) -> None:
    task = "corridor_envs:Corridor/Gradient-v0"
    train_tiny(tmp_path / "shifted", ALGO, task)
    shifted = pictures(batches)
    batches.clear()
    train_tiny(tmp_path / "plain", ALGO, task, algo_kwargs={"augmentation": "none"})
    plain = pictures(batches)
    centre = (18, 18)
    assert len(plain[:, centre[0], centre[1]].unique()) == 1
    assert 1 < len(shifted[:, centre[0], centre[1]].unique()) <= 81


def test_scheduled_simulations_reach_the_metrics_and_change_no_configuration(tmp_path: Path) -> None:
    settings = {"num_simulations": 4, "num_simulations_schedule": {"type": "step", "milestones": [0.5], "values": [2]}}
    config = tiny_run(tmp_path, ALGO, "CartPole-v1", algo_kwargs=settings)
    params = algorithm_params(config)
    result = train(config)
    assert result.metrics["num_simulations"] == 2
    assert type(last_row(result.run_dir)["num_simulations"]) is int
    assert algorithm_params(config) == params
    assert load_policy(result.run_dir).num_simulations == 2


def test_a_continuous_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="efficientzero does not support the Box actions of Pendulum-v1"):
        train(tiny_run(tmp_path / "runs", ALGO, "Pendulum-v1"))


def test_a_batch_of_observations_is_planned_for_at_once(tmp_path: Path) -> None:
    policy = load_policy(train_tiny(tmp_path, ALGO, "CartPole-v1", total_timesteps=24).run_dir)
    observations = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    together = policy.predict(observations, num_simulations=5)
    assert together.tolist() == [policy.predict(row, num_simulations=5) for row in observations]
