"""PQN is wired up for every kind of observation, values truncated episodes by legal actions, and repeats itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import assert_same_run, json_rows, tiny_config
from off_policy_runs import train_checked
from rl_training.algorithms.pqn import PQN
from rl_training.data.rollout import Rollout
from rl_training.envs.step import StepBatch
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.workflows import evaluate, train

SETTINGS: dict[str, Any] = {"num_steps": 16, "minibatch_size": 16, "update_epochs": 2, "hidden_sizes": [8]}


def _tiny(output_dir: Path, env_id: str, **changes: Any) -> TrainConfig:
    """Return two rollouts of 16 steps in two environments."""
    defaults: dict[str, Any] = {"total_timesteps": 64, "eval_interval": None, "checkpoint_interval": 64}
    settings = {**SETTINGS, **changes.pop("algo_kwargs", {})}
    return tiny_config(
        output_dir, algo="pqn", env_id=env_id, algo_kwargs=settings, torch_threads=1, **{**defaults, **changes}
    )


@pytest.mark.parametrize("kind", ["Discrete", "Image", "Dict", "MaskedDiscrete", "LateMask"])
def test_every_observation_space_trains(tmp_path: Path, kind: str) -> None:
    result = train_checked(_tiny(tmp_path, f"toy_envs:Toy/{kind}-v0"))
    policy = load_policy(result.run_dir)
    for deterministic in (True, False):
        action = policy.predict(policy.observation_space.sample(), deterministic=deterministic)
        assert policy.action_space.contains(action)


@pytest.mark.parametrize("changes", [{"dueling": True}, {"layer_norm": False}, {"optimizer": "adam"}])
def test_every_option_trains(tmp_path: Path, changes: dict[str, Any]) -> None:
    train_checked(_tiny(tmp_path, "CartPole-v1", algo_kwargs=changes))


def test_rows_show_what_it_learns_and_epsilon(tmp_path: Path) -> None:
    schedule = {"type": "linear", "end": 0.2, "duration": 1.0}
    config = _tiny(tmp_path, "CartPole-v1", algo_kwargs={"epsilon_schedule": schedule})
    rows = [row for row in json_rows(train(config).run_dir / "metrics.jsonl") if row["event"] == "train"]
    assert {"loss_q", "q_mean", "gradient_norm", "learning_rate"} <= rows[-1].keys()
    assert [row["epsilon"] for row in rows] == pytest.approx([1.0, 0.6])  # of the rollouts that begin at 0 and 32


def test_a_truncated_episode_is_worth_its_best_legal_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second episode of the environment is cut off, where its mask forbids some actions."""
    steps: list[StepBatch] = []
    rollouts: list[tuple[PQN, Rollout]] = []
    follow, update = RolloutCollector.follow, PQN.update

    def following(self: RolloutCollector, step: StepBatch) -> None:
        steps.append(copy.deepcopy(step))
        follow(self, step)

    def updating(self: PQN, rollout: Rollout, *arguments: Any) -> Any:
        if not rollouts:
            rollouts.append((copy.deepcopy(self), copy.deepcopy(rollout)))
        return update(self, rollout, *arguments)

    monkeypatch.setattr(RolloutCollector, "follow", following)
    monkeypatch.setattr(PQN, "update", updating)
    train(_tiny(tmp_path, "toy_envs:Toy/MaskedDiscrete-v0"))
    ((algorithm, rollout),) = rollouts
    forbidden = 0
    for at, step in enumerate(steps[: algorithm.params.num_steps]):
        assert step.final_mask is not None
        with torch.no_grad():
            values = algorithm.model.forward(torch.as_tensor(step.final_obs)).squeeze(2).numpy()
        legal = np.where(step.final_mask, values, -np.inf).max(axis=1)
        cut_off = step.truncated & ~step.terminated
        np.testing.assert_allclose(rollout.final_value[at], np.where(cut_off, legal, 0.0), rtol=1e-5, atol=1e-6)
        forbidden += int((cut_off & (legal < values.max(axis=1))).sum())
    assert forbidden  # all actions together would have been worth more
    assert rollout.last_mask is not None
    last = steps[algorithm.params.num_steps - 1].action_mask
    assert rollout.last_mask.numpy().tolist() == np.asarray(last).tolist()


@pytest.mark.parametrize("backend", ["local_sync", "vector"])
def test_acceleration_changes_no_bit_and_says_that_there_is_no_kernel(tmp_path: Path, backend: str) -> None:
    runs = {
        mode: train(_tiny(tmp_path / mode, "CartPole-v1", acceleration=mode, execution_backend=backend)).run_dir
        for mode in ("auto", "off")
    }
    assert_same_run(runs["auto"], runs["off"])
    assert read_metadata(runs["auto"])["acceleration"] == {"kernel": None, "reason": "PQN has no kernel"}


def test_evaluation_is_greedy_and_repeats_itself(tmp_path: Path) -> None:
    run_dir = train(_tiny(tmp_path, "CartPole-v1")).run_dir
    returns = [[episode.episode_return for episode in evaluate(run_dir, num_episodes=3).episodes] for _ in range(2)]
    assert returns[0] == returns[1]
