"""Samplers of runs with a replay: the same bits however the environments are split, also after a stop and a resume."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from gymnasium import spaces

from harness import assert_same_state, train_with_stops, weights
from processes import Launcher, assert_survives_kills, uninterrupted
from replays import (
    OFF_POLICY_TASKS,
    assert_same_but_for_samplers,
    assert_same_replay,
    assert_same_run_and_replay,
    off_policy_config,
)
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.algorithms.td3 import TD3
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.samplers.groups import SampledGroups
from rl_training.runtime.samplers.pool import SamplerPool
from rl_training.runtime.samplers.shared_memory import check_weights
from rl_training.runtime.workflows import resume, train

SPLITTABLE = [task for task in OFF_POLICY_TASKS if task != "dqn_repeats"]
GOALS: dict[str, Any] = {
    "env_id": "rl_training.envs.goal_tasks:PointReach-v0",
    "algo_kwargs": {"hindsight": "future", "train_interval": 9},
}
ROUNDS: dict[str, Any] = {"num_envs": 2, "algo_kwargs": {"train_interval": 10}}
"""Several steps of all environments in a round."""


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        pytest.param("dqn_stacked_images", {}, id="images-priorities"),
        pytest.param("dqn_lstm", {}, id="memory-normalised"),
        pytest.param("td3", {"algo_kwargs": {"train_interval": 15, "gradient_steps": -1, "n_step": 3}}, id="rounds"),
    ],
)
def test_a_run_with_samplers_is_the_run_without(tmp_path: Path, task: str, changes: dict[str, Any]) -> None:
    changes = {"num_envs": 3, "total_timesteps": 120, **changes}
    alone = uninterrupted(off_policy_config(task, tmp_path / "alone", **changes))
    split = uninterrupted(off_policy_config(task, tmp_path / "split", samplers=2, **changes))
    assert_same_but_for_samplers(split, alone)


@pytest.mark.slow
@pytest.mark.parametrize("task", [*SPLITTABLE, "goals"])
def test_any_number_of_samplers_is_none(tmp_path: Path, task: str) -> None:
    changes: dict[str, Any] = {"num_envs": 4, "execution_backend": "local_sync", **(GOALS if task == "goals" else {})}
    task = "sac" if task == "goals" else task
    alone = uninterrupted(off_policy_config(task, tmp_path / "alone", **changes))
    for samplers in (1, 2, 4):
        split = uninterrupted(off_policy_config(task, tmp_path / str(samplers), samplers=samplers, **changes))
        assert_same_but_for_samplers(split, alone)


@pytest.mark.parametrize(
    ("task", "lag"),
    [
        ("sac", 1),
        pytest.param("rainbow", 1, marks=pytest.mark.slow),
        pytest.param("dqn", 0, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_with_samplers_continues_bit_for_bit(tmp_path: Path, task: str, lag: int) -> None:
    changes: dict[str, Any] = {"samplers": 2, "policy_lag": lag, "total_timesteps": 120}
    whole = uninterrupted(off_policy_config(task, tmp_path / "whole", **changes))
    stopped = train_with_stops(off_policy_config(task, tmp_path / "stopped", **changes), [3, 20, 17])
    assert_same_run_and_replay(whole, stopped)


def test_what_is_collected_with_a_lag_does_not_depend_on_rows_and_checkpoints(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**ROUNDS, "samplers": 2, "policy_lag": 1, "total_timesteps": 160, "eval_interval": None}
    often, seldom = (
        uninterrupted(
            off_policy_config("td3", tmp_path / str(every), log_interval=every, checkpoint_interval=every, **changes)
        )
        for every in (24, 160)
    )
    assert_same_state(weights(often), weights(seldom))
    assert_same_replay(often, seldom)
    alone = uninterrupted(off_policy_config("td3", tmp_path / "alone", **{**changes, "policy_lag": 0}))
    assert any(not one.equal(weights(alone)[path]) for path, one in weights(often).items())


@pytest.mark.parametrize("lag", [0, 1])
def test_samplers_act_with_the_weights_from_before_the_last_update_or_with_the_latest(tmp_path: Path, lag: int) -> None:
    learned: list[torch.Tensor] = []
    acted: list[torch.Tensor] = []
    update, begin = TD3.update, SampledGroups.begin

    def noted(weights: Any) -> torch.Tensor:
        return torch.cat([tensor.detach().flatten() for tensor in weights["actor"].values()]).clone()

    def updating(algorithm: TD3, *arguments: Any) -> Any:
        if not learned:
            learned.append(noted(algorithm.acting_weights()))
        metrics = update(algorithm, *arguments)
        learned.append(noted(algorithm.acting_weights()))
        return metrics

    def beginning(groups: SampledGroups, order: Any, weights: Any) -> None:
        now = noted(weights)
        if not acted or not now.equal(acted[-1]):
            acted.append(now)
        begin(groups, order, weights)

    settings = {**ROUNDS, "algo_kwargs": {**ROUNDS["algo_kwargs"], "policy_delay": 1}}
    with mock.patch.object(TD3, "update", updating), mock.patch.object(SampledGroups, "begin", beginning):
        train(off_policy_config("td3", tmp_path, samplers=1, policy_lag=lag, total_timesteps=100, **settings))
    assert len(learned) > 5
    expected = learned[: -1 - lag]  # nothing is collected after the last update
    assert len(acted) == len(expected)
    assert all(map(torch.equal, acted, expected))


def test_samplers_get_the_networks_that_act_and_a_subclass_has_to_name_its_own() -> None:
    class Own(DQN):
        pass

    def made(algorithm: type[DQN]) -> DQN:
        parts: Any = {"device": torch.device("cpu"), "generator": torch.Generator()}
        return algorithm(DQNParams(), spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2), **parts)

    assert list(made(DQN).acting_weights()) == ["model"]
    assert list(made(Own).acting_weights()) == ["model", "target_model"]
    one, other = made(Own), made(Own)
    with torch.no_grad():
        one.optimizer.values.add_(1.0)
    other.load_acting_weights(one.acting_weights())
    assert_same_state(one.model.state_dict(), other.model.state_dict())


def test_restored_weights_have_to_be_those_of_the_networks_that_act() -> None:
    weights: dict[str, Any] = {"actor": {"weight": torch.zeros(2), "bias": torch.zeros(1)}}
    unfitting: list[dict[str, Any]] = [
        {"actor": {"weight": torch.ones(2)}},
        {**weights, "critic": {"w": torch.ones(1)}},
        {},
    ]
    check_weights(weights, {"actor": {"weight": torch.ones(2), "bias": torch.ones(1)}}, "before_update")
    for found in unfitting:
        with pytest.raises(ValueError, match="before_update does not hold the weights of the networks that act"):
            check_weights(weights, found, "before_update")


def test_samplers_take_all_steps_of_a_round_at_once_and_say_so(tmp_path: Path) -> None:
    with mock.patch.object(SamplerPool, "begin", autospec=True, side_effect=SamplerPool.begin) as begun:
        result = train(off_policy_config("dqn", tmp_path, samplers=1, policy_lag=1, log_interval=120, **ROUNDS))
    lengths = [len(call.args[1].steps) for call in begun.call_args_list]
    assert sum(lengths) == 240 / 2
    assert max(lengths[:3]) > 5  # before learning begins
    assert max(lengths[5:]) == 5
    assert result.metrics["policy_lag"] == 1
    assert result.metrics["bytes_moved"] > 5 * 2 * (4 * 4 + 8 + 4 + 2)
    assert result.metrics["wait_collect"] > 0


def test_a_killed_sampler_of_transitions_is_replaced_and_changes_no_bit(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**ROUNDS, "samplers": 2, "policy_lag": 1, "total_timesteps": 160}
    whole = uninterrupted(off_policy_config("dqn", tmp_path / "whole", **changes))
    begin, count = SamplerPool.begin, 0

    def struck(pool: SamplerPool, *arguments: Any) -> None:
        nonlocal count
        begin(pool, *arguments)
        count += 1
        if count == 12:
            os.kill(pool._workers[1].process.pid or 0, signal.SIGKILL)

    with mock.patch.object(SamplerPool, "begin", struck):
        killed = uninterrupted(off_policy_config("dqn", tmp_path / "killed", **changes))
    assert_same_run_and_replay(whole, killed)
    (notice,) = (notice for notice in read_metadata(killed)["notices"] if "another one takes its place" in notice)
    assert "sampler 1 (environment 1; the last it entered was 1) was killed by SIGKILL" in notice


def test_an_environment_that_raises_in_a_sampler_is_named_with_the_step_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"at step \d+ of the run, environment [01] \(seed \d+\)"):
        train(off_policy_config("dqn", tmp_path, env_id="env_samples:Sample/Trouble-v0", samplers=2, eval_episodes=0))


def test_environments_that_cannot_be_saved_start_anew_in_samplers(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"samplers": 2, "policy_lag": 1, "total_timesteps": 96, "eval_episodes": 0}
    run_dir = train_with_stops(
        off_policy_config("dqn", tmp_path, env_id="env_samples:Sample/Forgetful-v0", **changes), [20]
    )
    assert read_metadata(run_dir)["resume_mode"] == "episode-boundary"


def test_a_fork_may_add_samplers_to_a_run_with_a_replay(tmp_path: Path) -> None:
    alone = uninterrupted(off_policy_config("sac", tmp_path / "alone", total_timesteps=96))
    checkpoint = alone / "checkpoints" / "step_64"
    here = resume(checkpoint, fork=True, overrides={"output_dir": str(tmp_path / "here")})
    split = resume(checkpoint, fork=True, overrides={"output_dir": str(tmp_path / "split"), "samplers": 2})
    assert_same_state(weights(here.run_dir), weights(split.run_dir))


@pytest.mark.parametrize(
    ("task", "changes", "sentence"),
    [
        ("dqn_repeats", {}, "samplers: random actions are repeated for all environments together; set"),
        (
            "sac_sde",
            {"policy_lag": 1, "algo_kwargs": {"sde_sample_freq": -1}},
            "policy_lag: noise that every update redraws needs samplers that wait; set",
        ),
    ],
)
def test_exploration_that_cannot_be_split_is_refused(
    tmp_path: Path, task: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        train(off_policy_config(task, tmp_path, samplers=2, **changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("task", "lag"), [("dqn", 0), ("dqn", 1), ("sac", 0), ("sac", 1)])
def test_a_run_with_samplers_and_a_replay_survives_ten_kills(tmp_path: Path, task: str, lag: int) -> None:
    config = off_policy_config(
        task,
        tmp_path / "killed",
        samplers=2,
        policy_lag=lag,
        total_timesteps=4000,
        checkpoint_interval=80,
        log_interval=80,
        eval_interval=1600,
        algo_kwargs={"train_interval": 8},
    )
    reference = uninterrupted(dataclasses.replace(config, output_dir=tmp_path / "whole"))
    killed = assert_survives_kills(Launcher(tmp_path / "output"), config, reference, kills=10, seed=lag)
    assert killed.kills == 10
    assert_same_replay(killed.run_dir, reference)
