"""Learning may begin at once: batches larger than what is stored, no warm-up, and as many updates as steps."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import off_policy_runs
import planning_runs
from harness import json_rows, train_with_stops
from processes import uninterrupted
from replays import assert_same_run_and_replay, off_policy_config
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config
from rl_training.experiment.runs import read_metadata
from rl_training.models.exploration import ExplorationMatrices
from rl_training.runtime.workflows import train
from scalezero_runs import NEVER, tiny_suite

DISCRETE = ("dqn", "double_dqn", "c51", "qr_dqn", "rainbow", "discrete_sac")
CONTINUOUS = ("sac", "tqc", "crossq", "td3", "ddpg")
AT_ONCE = {"learning_starts": 0, "batch_size": 32}


def updates_of(result: Any) -> int:
    return int(result.metrics["update_count"])


@pytest.mark.parametrize("algo", [*DISCRETE, *CONTINUOUS])
def test_learning_may_begin_at_once_with_a_batch_larger_than_the_replay(algo: str, tmp_path: Path) -> None:
    env_id = "CartPole-v1" if algo in DISCRETE else "Pendulum-v1"
    settings = {**AT_ONCE, "train_interval": 2, "n_step": 3}
    result = off_policy_runs.train_tiny(tmp_path, algo, env_id, total_timesteps=24, algo_kwargs=settings)
    assert updates_of(result) == 12


@pytest.mark.parametrize("algo", ["muzero", "gumbel_muzero", "efficientzero"])
def test_planning_may_begin_at_once(algo: str, tmp_path: Path) -> None:
    result = planning_runs.train_tiny(tmp_path, algo, "CartPole-v1", total_timesteps=16, algo_kwargs=AT_ONCE)
    assert updates_of(result) == 4


def test_scalezero_may_begin_at_once(tmp_path: Path) -> None:
    result = train(tiny_suite(tmp_path, NEVER, NEVER, total_timesteps=32, eval_interval=16, algo_kwargs=AT_ONCE))
    assert updates_of(result) > 0


@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("prioritized", [False, True])
def test_updates_due_before_a_transition_is_complete_are_made_up_for(
    num_envs: int, prioritized: bool, tmp_path: Path
) -> None:
    """Returns of five steps keep everything back until the fifth step of an environment."""
    settings = {**AT_ONCE, "n_step": 5, "train_interval": 3, "gradient_steps": 2, "prioritized": prioritized}
    result = off_policy_runs.train_tiny(
        tmp_path, "dqn", "CartPole-v1", total_timesteps=50, num_envs=num_envs, algo_kwargs=settings
    )
    assert updates_of(result) == 2 * (50 // 3)


def test_hindsight_may_begin_at_once(tmp_path: Path) -> None:
    settings = {**AT_ONCE, "hindsight": "future"}
    result = off_policy_runs.train_tiny(
        tmp_path, "dqn", "rl_training.envs.goal_tasks:BitFlip-v0", total_timesteps=16, algo_kwargs=settings
    )
    assert updates_of(result) == 4


def test_a_batch_that_repeats_transitions_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = train(off_policy_config("dqn", tmp_path, num_envs=2, algo_kwargs=AT_ONCE))
    said = [line for line in caplog.messages if "batch of 32" in line]
    assert said == [
        "the replay holds 4 transitions at the first update, fewer than a batch of 32: batches repeat them until there "
        "are more; raise algo_kwargs.learning_starts to begin later"
    ]
    assert said[0] in read_metadata(result.run_dir)["notices"]


def test_nothing_is_said_where_the_warm_up_fills_a_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(off_policy_config("dqn", tmp_path, total_timesteps=40))
    assert not [line for line in caplog.messages if "batch" in line]


# -- as many updates as steps ----------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("interval", [1, 4])
def test_minus_one_makes_as_many_updates_as_steps_were_collected(num_envs: int, interval: int, tmp_path: Path) -> None:
    settings = {"gradient_steps": -1, "train_interval": interval, "learning_starts": 8}
    result = off_policy_runs.train_tiny(
        tmp_path, "dqn", "CartPole-v1", total_timesteps=40, num_envs=num_envs, algo_kwargs=settings
    )
    assert updates_of(result) == 32


@pytest.mark.parametrize(("key", "repair"), [("gradient_steps", "-1 for as many"), ("sde_sample_freq", "use -1")])
@pytest.mark.parametrize("value", [0, -2])
def test_other_numbers_below_one_are_refused(key: str, value: int, repair: str) -> None:
    raw = {"algo": "sac", "env_id": "Pendulum-v1", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    with pytest.raises(ConfigError, match=rf"algo_kwargs.{key}: .*{repair if value == 0 else 'must be'}"):
        validate_config({**raw, "algo_kwargs": {key: value}})


@pytest.mark.parametrize("num_envs", [1, 2])
def test_minus_one_draws_exploration_anew_after_each_round(
    num_envs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    original = ExplorationMatrices.step

    def step(self: ExplorationMatrices, *arguments: Any) -> Any:
        before = self._matrices
        found = original(self, *arguments)
        drawn.append(found is not before)
        return found

    monkeypatch.setattr(ExplorationMatrices, "step", step)
    settings = {"use_sde": True, "sde_sample_freq": -1, "train_interval": 4, "learning_starts": 16}
    off_policy_runs.train_tiny(
        tmp_path, "sac", "Pendulum-v1", total_timesteps=32, num_envs=num_envs, algo_kwargs=settings
    )
    every = 4 // num_envs
    assert drawn == [index % every == 0 for index in range(16 // num_envs)]


HABITS = {
    "dqn": {**AT_ONCE, "gradient_steps": -1, "n_step": 4, "prioritized": True},
    "sac_sde": {**AT_ONCE, "gradient_steps": -1, "sde_sample_freq": -1, "train_interval": 3},
}


@pytest.mark.parametrize("task", HABITS)
def test_a_stopped_run_that_begins_at_once_ends_as_one_that_was_not(task: str, tmp_path: Path) -> None:
    def config(place: str) -> Any:
        return off_policy_config(task, tmp_path / place, num_envs=3, total_timesteps=90, algo_kwargs=HABITS[task])

    stopped = train_with_stops(config("stopped"), [1, 2, 8])
    assert_same_run_and_replay(stopped, uninterrupted(config("straight")))


# -- what is said before the run -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "num_envs", "sentence"),
    [
        (
            {},
            64,
            "1 update per environment step, 64 each time all 64 environments step; raise algo_kwargs.train_interval "
            "for fewer",
        ),
        (
            {"train_interval": 4, "gradient_steps": 2},
            8,
            "0.5 updates per environment step, 4 each time all 8 environments step; lower algo_kwargs.gradient_steps "
            "or raise algo_kwargs.train_interval for fewer",
        ),
        (
            {"train_interval": 4, "gradient_steps": -1},
            2,
            "1 update per environment step, 2 each time all 2 environments step; set algo_kwargs.gradient_steps to a "
            "number for fewer",
        ),
        ({"train_interval": 4, "gradient_steps": -1}, 1, "1 update per environment step"),
    ],
)
def test_the_number_of_updates_is_said_before_the_run(
    settings: dict[str, Any], num_envs: int, sentence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = {"total_timesteps": 65, "num_envs": num_envs, "algo_kwargs": {"learning_starts": 64, **settings}}
    with caplog.at_level(logging.INFO):
        off_policy_runs.train_tiny(tmp_path, "sac", "Pendulum-v1", **run)
    (said,) = [line for line in caplog.messages if "per environment step" in line]
    assert said == sentence


def test_planning_says_its_number_of_updates_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        planning_runs.train_tiny(tmp_path, "muzero", "CartPole-v1", num_envs=8, total_timesteps=24)
    (said,) = [line for line in caplog.messages if "per environment step" in line]
    assert said == (
        "0.25 updates per environment step, 2 each time all 8 environments step; lower algo_kwargs.replay_ratio for "
        "fewer"
    )


def test_the_rows_show_what_was_said(tmp_path: Path) -> None:
    result = off_policy_runs.train_tiny(tmp_path, "sac", "Pendulum-v1", num_envs=8)
    rows = [row for row in json_rows(result.run_dir / "metrics.jsonl") if row["event"] == "train"]
    assert rows[-1]["update_count"] - rows[0]["update_count"] == rows[-1]["global_step"] - rows[0]["global_step"]
