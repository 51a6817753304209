"""Sizes that memory cannot hold are refused with an estimate before anything is made of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_training.runtime.setup.size_limits as limits
from harness import tiny_config
from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.cli import main
from rl_training.envs.spaces import joined_spaces
from rl_training.errors import ConfigError
from rl_training.experiment.registry import ALGORITHMS
from rl_training.experiment.tasks import Task
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, resume, train

VECTOR = spaces.Box(-1, 1, (9,), np.float32)
DISCRETE, BOX = spaces.Discrete(4), spaces.Box(-1, 1, (3,), np.float32)
SENTENCE = r"need at least [\d,.]+ [GM]B of memory, and [\d,.]+ [GM]B are available; lower it"


@pytest.fixture(autouse=True)
def sixteen_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_memory", lambda: 16 * 10**9)


@pytest.mark.parametrize(
    ("algo", "setting"),
    [
        ("ppo", "algo_kwargs.num_steps=1e12"),
        ("a2c", "algo_kwargs.num_steps=1e12"),
        ("ppo", "algo_kwargs.hidden_sizes=[1000000000]"),
        ("ppo", "algo_kwargs.hidden_sizes=[100000,100000]"),
        ("ppo", "num_envs=1e9"),
        ("ppo", "num_envs=1" + "0" * 38),
        ("ppo", "eval_episodes=1e12"),
        ("ppo", "env_kwargs.frame_stack=1e9"),
        ("dqn", "num_envs=1e9"),
        ("dqn", "algo_kwargs.gradient_steps=1e9"),
        ("dqn", "algo_kwargs.hidden_sizes=[1000000000]"),
        ("c51", "algo_kwargs.num_atoms=1e9"),
        ("qr_dqn", "algo_kwargs.num_quantiles=1e5"),
        ("rainbow", "algo_kwargs.hidden_sizes=[1000000000]"),
        ("discrete_sac", "algo_kwargs.num_critics=1e9"),
        ("sac", "algo_kwargs.hidden_sizes=[1000000000]"),
        ("sac", "algo_kwargs.critic_hidden_sizes=[1000000000]"),
        ("tqc", "algo_kwargs.num_quantiles=1e9"),
        ("crossq", "algo_kwargs.num_critics=1e9"),
        ("td3", "algo_kwargs.num_critics=1e9"),
        ("ddpg", "algo_kwargs.hidden_sizes=[300000,300000]"),
        ("muzero", "algo_kwargs.num_simulations=1e8"),
        ("gumbel_muzero", "algo_kwargs.num_simulations=1e8"),
        ("efficientzero", "algo_kwargs.num_simulations=1e8"),
        ("muzero", "algo_kwargs.hidden_size=1e9"),
        ("muzero", "algo_kwargs.latent_size=1e9"),
        ("muzero", "algo_kwargs.support_size=1e9"),
        ("muzero", "algo_kwargs.unroll_steps=1e9 buffer_size=1e12"),
        ("scalezero", "algo_kwargs.experts=1e9"),
        ("scalezero", "algo_kwargs.width=800000000"),
        ("scalezero", "algo_kwargs.layers=1e9"),
        ("scalezero", "algo_kwargs.context_steps=1e9"),
        ("scalezero", "algo_kwargs.adapter_rank=1e9"),
    ],
)
def test_an_absurd_size_is_refused_with_an_estimate(
    algo: str, setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env_id = "Pendulum-v1" if "Box" in ALGORITHMS[algo].action_spaces and algo not in ("ppo", "a2c") else "CartPole-v1"
    setting, *more = setting.split()
    values = [setting, *(f"algo_kwargs.{text}" for text in more)]
    if algo == "scalezero":
        values.append("algo_kwargs.parameter_scaling=false")
    flags = [flag for text in values for flag in ("--set", text)]
    assert main(["train", "--algo", algo, "--env", env_id, "--output-dir", str(tmp_path / "runs"), *flags]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    key = setting.partition("=")[0]
    assert said.startswith(f"axiomrl: error: {key}: "), said
    assert re.search(SENTENCE, said), said
    assert not (tmp_path / "runs").exists()


def test_an_atari_screen_is_measured_without_a_game() -> None:
    task = Task("Pong", "ALE/Pong-v5", {"atari": True, "screen_size": 10**6})
    with pytest.raises(
        ConfigError, match=f"^env_kwargs.screen_size: observations of 1000000 x 1000000 pixels {SENTENCE}"
    ):
        limits.check_observation_size(task)


def test_repeated_actions_and_long_returns_are_measured(tmp_path: Path) -> None:
    for settings, key in (
        ({"repeat_exponent": 1.0, "repeat_limit": 10**12}, "repeat_limit"),
        ({"n_step": 10**9, "buffer_size": 10**9}, "n_step"),
        ({"batch_size": 10**10, "buffer_size": 10**10}, "batch_size"),
    ):
        with pytest.raises(ConfigError, match=rf"algo_kwargs.{key}: .*{SENTENCE}"):
            train(tiny_config(tmp_path, algo="dqn", total_timesteps=10_000, algo_kwargs=settings))


@pytest.mark.parametrize(
    ("schedule", "largest"),
    [
        (None, 25),
        ({"type": "linear", "start": 10, "end": 400}, 400),
        ({"type": "step", "factor": 2.0}, 100),
        ({"type": "piecewise", "points": [[0, 1], [1, 800]]}, 800),
        ("constant", 25),
    ],
)
def test_a_schedule_of_simulations_counts_by_its_largest(schedule: Any, largest: int) -> None:
    assert MuZeroParams(num_simulations_schedule=schedule).most_simulations == largest


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_the_estimate_of_a_network_is_at_most_what_it_has_and_not_much_less(algo: str) -> None:
    spec = ALGORITHMS[algo]
    params = spec.load_params()(**({"hidden_sizes": (32, 48)} if algo not in PLANNING else {}))
    taken = DISCRETE if "Discrete" in spec.action_spaces else BOX
    pair = {"one": VECTOR}, {"one": taken}
    algorithm = spec.load_algorithm()(
        params,
        *((joined_spaces(part) for part in pair) if spec.many_tasks else (VECTOR, taken)),
        device=torch.device("cpu"),
        generator=torch.Generator(),
    )
    parts = [part for name, part in vars(algorithm).items() if "target" not in name]
    modules = [part for part in parts if isinstance(part, torch.nn.Module)]
    counted = sum(number.numel() for module in modules for number in (*module.parameters(), *module.buffers()))
    estimate = params.network_weights(limits.observation_width(VECTOR), limits.action_width(taken))
    assert estimate <= counted
    assert counted < 2 * estimate


PLANNING = ("muzero", "gumbel_muzero", "efficientzero", "scalezero")


@pytest.mark.parametrize(
    ("space", "size", "width"),
    [
        (VECTOR, 36, 9),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), 4 * 84 * 84, 128),
        (spaces.Discrete(7), 8, 7),
        (spaces.MultiDiscrete([3, 5]), 16, 8),
        (spaces.Dict({"a": VECTOR, "b": spaces.Discrete(7)}), 44, 16),
    ],
)
def test_observations_by_hand(space: spaces.Space[Any], size: int, width: int) -> None:
    assert limits.observation_bytes(space) == size
    assert limits.observation_width(space) == width


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("runs"), total_timesteps=64, eval_interval=None)).run_dir


def test_an_evaluation_of_absurdly_many_episodes_is_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match=f"^num_episodes: the seeds of 1000000000000 episodes {SENTENCE}"):
        evaluate(finished, num_episodes=10**12)


def test_a_checkpoint_of_an_absurd_size_is_refused(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever changes the sizes in a checkpoint changes its hashes too; here less memory stands for larger sizes."""
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    monkeypatch.setattr(limits, "available_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=SENTENCE):
        load_policy(copy)
    with pytest.raises(ConfigError, match=SENTENCE):
        resume(copy, total_timesteps=128)
