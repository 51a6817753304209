"""Samplers of runs that plan: searches of some environments find what a search for all of them does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import train_with_stops
from planning_runs import RESUMED_TASKS, planning_config
from processes import Launcher, assert_survives_kills, uninterrupted
from replays import assert_same_but_for_samplers, assert_same_replay, assert_same_run_and_replay
from rl_training.algorithms.gumbel_muzero import GumbelMuZero, GumbelMuZeroParams
from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.data.observations import sample_batch
from rl_training.errors import ConfigError
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.samplers.own_search import OwnSearch
from rl_training.runtime.setup.acceleration import accelerate

SELF_PLAY: dict[str, Any] = {
    "env_id": "rl_training.envs.board_games:TicTacToe-v0",
    "eval_interval": None,
    "algo_kwargs": {"two_player": True},
    "env_kwargs": {"evaluation": {"opponent": "random"}},
}


def test_a_planning_run_with_samplers_is_the_run_without(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"num_envs": 3, "total_timesteps": 60}
    alone = uninterrupted(planning_config("efficientzero", tmp_path / "alone", **changes))
    split = uninterrupted(planning_config("efficientzero", tmp_path / "split", samplers=2, **changes))
    assert_same_but_for_samplers(split, alone)
    assert not [notice for notice in read_metadata(split)["notices"] if "searches for all of them" in notice]


@pytest.mark.slow
@pytest.mark.parametrize("task", [*RESUMED_TASKS, "self_play"])
def test_any_number_of_planning_samplers_is_none(tmp_path: Path, task: str) -> None:
    changes: dict[str, Any] = {"num_envs": 4, **(SELF_PLAY if task == "self_play" else {})}
    task = "gumbel_muzero" if task == "self_play" else task
    alone = uninterrupted(planning_config(task, tmp_path / "alone", **changes))
    for samplers in (1, 2, 4):
        split = uninterrupted(planning_config(task, tmp_path / str(samplers), samplers=samplers, **changes))
        assert_same_but_for_samplers(split, alone)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gumbel_muzero", "efficientzero"])
def test_a_stopped_planning_run_with_a_lag_continues_bit_for_bit(tmp_path: Path, task: str) -> None:
    changes: dict[str, Any] = {"samplers": 2, "policy_lag": 1, "total_timesteps": 96}
    whole = uninterrupted(planning_config(task, tmp_path / "whole", **changes))
    stopped = train_with_stops(planning_config(task, tmp_path / "stopped", **changes), [3, 14])
    assert_same_run_and_replay(whole, stopped)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_a_planning_run_with_samplers_survives_kills(tmp_path: Path, lag: int) -> None:
    config = planning_config(
        "gumbel_muzero",
        tmp_path / "killed",
        samplers=2,
        policy_lag=lag,
        total_timesteps=1600,
        checkpoint_interval=80,
        log_interval=80,
        eval_interval=800,
        algo_kwargs={"replay_ratio": 0.25},
    )
    reference = uninterrupted(dataclasses.replace(config, output_dir=tmp_path / "whole"))
    killed = assert_survives_kills(Launcher(tmp_path / "output"), config, reference, kills=10, seed=lag)
    assert killed.kills >= 5
    assert_same_replay(killed.run_dir, reference)


def _made(algorithm: type[MuZero], params: Any, space: spaces.Box, *, compiled: bool) -> MuZero:
    small = dataclasses.replace(params, latent_size=16, hidden_size=16, support_size=5)
    parts: Any = {"device": torch.device("cpu"), "generator": torch.Generator()}
    made = algorithm(small, space, spaces.Discrete(3), **parts)
    if compiled:
        accelerate(made, "auto")
    return made


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("algorithm", "params"), [(MuZero, MuZeroParams()), (GumbelMuZero, GumbelMuZeroParams())])
def test_the_search_of_own_rows_finds_what_a_search_of_all_rows_does(
    algorithm: type[MuZero], params: Any, compiled: bool
) -> None:
    space, num_envs = spaces.Box(-1.0, 1.0, (5,)), 5
    controls = {"num_simulations": 7.0, "root_exploration_fraction": 0.25, "temperature": 1.0}
    made = _made(algorithm, params, space, compiled=compiled)
    for own in (slice(0, 1), slice(1, 3), slice(4, 5), slice(0, 5)):
        search = OwnSearch(made, num_envs, own)
        search.try_rows(space, controls)
        assert search.searched == own or not compiled
        observation = sample_batch(space, num_envs, torch.device("cpu"))
        mask = np.ones((num_envs, 3), np.bool_)
        mask[::2, 1] = False
        draws = np.random.default_rng(4), np.random.default_rng(4)
        whole = made.plan(observation, mask, controls, draws[0])
        found = search.plan(observation[own], mask[own], controls, draws[1])  # type: ignore[index]
        assert all(np.array_equal(one, other[own]) for one, other in zip(found, whole, strict=True))
        assert draws[0].bit_generator.state == draws[1].bit_generator.state
        search.searched = slice(0, num_envs)  # what a model needs whose rounding depends on the number of rows
        again = search.plan(observation[own], mask[own], controls, np.random.default_rng(4))  # type: ignore[index]
        assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))


class _Mixing(torch.nn.Module):
    """Subtracts the mean of a batch."""

    width = 5

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation - observation.mean(dim=0)


def test_a_model_that_mixes_the_rows_of_a_batch_is_refused() -> None:
    space = spaces.Box(-1.0, 1.0, (5,))
    made = _made(MuZero, MuZeroParams(), space, compiled=False)
    made.network.encoder = _Mixing()
    with pytest.raises(ConfigError, match="samplers: the network of MuZero mixes the rows of a batch"):
        OwnSearch(made, 3, slice(1, 2)).try_rows(space, {"num_simulations": 3.0})
