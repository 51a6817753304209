"""Gumbel MuZero is wired up and explores by fresh noise alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from off_policy_runs import last_row, train_rows
from planning_runs import COMMON_METRICS, EXPLORATION, STEPS, tiny_run, train_tiny
from rl_training.algorithms.muzero import MuZero
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.config import algorithm_params
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, train
from rl_training.search.gumbel import Gumbel

ALGO = "gumbel_muzero"


@pytest.mark.parametrize("kind", ["Discrete", "DictWithImage"])
def test_it_trains_and_hands_over_its_policy(tmp_path: Path, kind: str) -> None:
    result = train_tiny(tmp_path, ALGO, f"toy_envs:Toy/{kind}-v0")
    row = last_row(result.run_dir)
    assert row.keys() >= COMMON_METRICS
    assert not row.keys() & (EXPLORATION | {"loss_consistency"})  # there is no temperature and no Dirichlet noise
    assert type(row["num_simulations"]) is int
    assert row["gumbel_scale"] == 1.0
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


@pytest.mark.parametrize("kind", ["MaskedDiscrete", "LateMask"])
def test_illegal_actions_are_never_taken(tmp_path: Path, kind: str) -> None:
    result = train_tiny(tmp_path, ALGO, f"toy_envs:Toy/{kind}-v0", algo_kwargs={"reanalyze_ratio": 1.0})
    evaluate(result.run_dir, num_episodes=2, stochastic=True)


def test_every_search_of_training_has_noise_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noises: list[np.ndarray] = []
    original = MuZero.plan

    def watched(self: MuZero, *arguments: Any) -> Any:
        found = original(self, *arguments)
        assert isinstance(self.search.rule, Gumbel)
        noises.append(self.search.tree.gumbel.copy())
        return found

    monkeypatch.setattr(MuZero, "plan", watched)
    for name in ("one", "other"):
        train_tiny(tmp_path / name, ALGO, "CartPole-v1")
    first, second = noises[: STEPS // 2], noises[STEPS // 2 :]
    assert len({noise.tobytes() for noise in first}) == STEPS // 2
    np.testing.assert_array_equal(first, second)  # and repeats with the seed


def test_noise_that_falls_does_so_in_acting_and_not_in_reanalysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting: list[float] = []
    reanalysis: list[float] = []
    plan, search_again = MuZero.plan, MuZero.search_again

    def watched_plan(self: MuZero, *arguments: Any) -> Any:
        found = plan(self, *arguments)
        acting.append(float(np.abs(self.search.tree.gumbel).mean()))
        return found

    def watched_again(self: MuZero, observation: Any, **settings: Any) -> Any:
        reanalysis.append(settings["exploration"])
        return search_again(self, observation, **settings)

    monkeypatch.setattr(MuZero, "plan", watched_plan)
    monkeypatch.setattr(MuZero, "search_again", watched_again)
    settings = {"gumbel_scale_schedule": "linear", "reanalyze_ratio": 1.0}
    result = train_tiny(tmp_path, ALGO, "CartPole-v1", algo_kwargs=settings)
    assert np.mean(acting[-5:]) < 0.3 * np.mean(acting[:5])
    assert result.metrics["gumbel_scale"] < 0.1
    assert set(reanalysis) == {1.0}


def test_scheduled_simulations_reach_the_metrics_and_change_no_configuration(tmp_path: Path) -> None:
    settings = {"num_simulations": 2, "num_simulations_schedule": {"type": "piecewise", "points": [[0, 2], [40, 6]]}}
    config = tiny_run(tmp_path, ALGO, "CartPole-v1", algo_kwargs=settings, log_interval=8)
    params = algorithm_params(config)
    result = train(config)
    # A step is taken with the count of its beginning, two steps before it is logged.
    expected = [int(2 + 4 * min(step - 2, 40) / 40 + 0.5) for step in (8, 16, 24, 32, 40, 48)]
    assert [row["num_simulations"] for row in train_rows(result.run_dir)] == expected
    assert result.metrics["num_simulations"] == 6
    assert algorithm_params(config) == params
    assert config.algo_kwargs["num_simulations"] == 2


def test_two_simulations_suffice(tmp_path: Path) -> None:
    train_tiny(tmp_path, ALGO, "toy_envs:Toy/Discrete-v0", algo_kwargs={"num_simulations": 2})


def test_tasks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gumbel_muzero does not support the Box actions of Pendulum-v1"):
        train(tiny_run(tmp_path / "runs", ALGO, "Pendulum-v1"))
    assert not (tmp_path / "runs").exists()
    with pytest.raises(EnvironmentFailure, match="action mask that allows nothing"):
        train(tiny_run(tmp_path, ALGO, "toy_envs:Toy/Stuck-v0"))
