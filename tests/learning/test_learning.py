"""Learning itself: what a broken sign, target or wiring cannot reach. The presets' own bars are marked slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training.algorithms import ppo
from rl_training.algorithms.advantages import generalized_advantage
from rl_training.experiment.config import validate_config
from rl_training.experiment.configuration.config_files import load_config
from rl_training.runtime.session import TrainResult
from rl_training.runtime.workflows import evaluate, train

QUICK = {"output_dir": "", "device": "cpu", "checkpoint_interval": 1_000_000, "tracking": {"tensorboard": False}}
RANDOM_CARTPOLE = 25.0  # mean return of random actions, rounded up
SLOW_SEEDS = range(5)


def _quick_cartpole(output_dir: Path, seed: int = 0) -> TrainResult:
    """Train the preset's settings for a tenth of its steps."""
    changes = {**QUICK, "output_dir": str(output_dir), "seed": seed, "total_timesteps": 10_000, "eval_interval": None}
    return train(load_config(preset="ppo-cartpole", overrides=changes))


def test_ppo_learns_cartpole(tmp_path: Path) -> None:
    metrics = _quick_cartpole(tmp_path).metrics
    assert metrics["train_return_mean"] > 2 * RANDOM_CARTPOLE  # of the last 100 exploring episodes
    assert metrics["eval_return_mean"] > 4 * RANDOM_CARTPOLE


def test_ppo_unlearns_cartpole_where_the_advantage_has_the_wrong_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ppo, "generalized_advantage", lambda *columns, **settings: -generalized_advantage(*columns, **settings)
    )
    metrics = _quick_cartpole(tmp_path).metrics
    assert metrics["train_return_mean"] < 1.5 * RANDOM_CARTPOLE
    assert metrics["eval_return_mean"] < 2 * RANDOM_CARTPOLE


# With the best return of a policy that ignores what it sees; episodes have eight steps, each worth 0 at best.
ECHO_TASKS: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "box": ("ppo", "Box", {"log_std_init": -1.0}, -2.6),
    "box_gsde": ("ppo", "Box", {"use_sde": True, "sde_sample_freq": 4, "log_std_init": -2.0}, -2.6),
    "box_state_dependent": ("ppo", "Box", {"log_std": "state_dependent", "log_std_init": -1.0}, -2.6),
    "discrete": ("ppo", "Discrete", {}, -6.0),
    "multi_discrete": ("ppo", "MultiDiscrete", {}, -5.6),
    "multi_binary": ("ppo", "MultiBinary", {}, -4.0),
    "masked": ("ppo", "MaskedDiscrete", {}, -3.6),
    "dict": ("ppo", "Dict", {}, -6.0),
    "a2c": ("a2c", "Discrete", {}, -6.0),
    "pqn": ("pqn", "Discrete", {}, -6.0),
    "pqn_masked": ("pqn", "MaskedDiscrete", {}, -3.6),
}


@pytest.mark.parametrize("task", ECHO_TASKS)
def test_the_shown_target_is_learned(tmp_path: Path, task: str) -> None:
    algo, kind, settings, best_blind_return = ECHO_TASKS[task]
    raw: dict[str, Any] = {
        **QUICK,
        "algo": algo,
        "env_id": f"toy_envs:Toy/{kind}-v0",
        "seed": 0,
        "total_timesteps": 6144 if algo == "ppo" else 12_288,
        "output_dir": str(tmp_path),
        "num_envs": 8,
        "eval_episodes": 20,
        "algo_kwargs": {"learning_rate": 3e-3, "gamma": 0.5, "hidden_sizes": [32], **settings},
    }
    if algo == "ppo":
        raw["algo_kwargs"] |= {"num_steps": 32, "minibatch_size": 64, "update_epochs": 5}
    elif algo == "pqn":
        raw["algo_kwargs"] |= {"num_steps": 16, "minibatch_size": 64}
    result = train(validate_config(raw))
    assert result.metrics["eval_return_mean"] > 0.2 * best_blind_return


# -- the presets' own bars -----------------------------------------------------------------------


def _final_score(preset: str, output_dir: Path, seed: int) -> float:
    """Train a preset and return the mean of 100 episodes of the final policy, played apart from the run."""
    config = load_config(preset=preset, overrides={"seed": seed, "output_dir": str(output_dir), "device": "cpu"})
    result = train(config)
    assert result.checkpoint_path is not None
    score: float = evaluate(result.checkpoint_path, num_episodes=100).metrics["eval_return_mean"]
    return score


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_preset_ppo_cartpole_solves_it_within_100k_steps(tmp_path: Path, seed: int) -> None:
    assert load_config(preset="ppo-cartpole").total_timesteps <= 100_000
    assert _final_score("ppo-cartpole", tmp_path, seed) >= 475


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_preset_ppo_pendulum_swings_up_within_300k_steps(tmp_path: Path, seed: int) -> None:
    assert load_config(preset="ppo-pendulum").total_timesteps <= 300_000
    assert _final_score("ppo-pendulum", tmp_path, seed) >= -250


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_preset_pqn_cartpole_solves_it_within_500k_steps(tmp_path: Path, seed: int) -> None:
    assert load_config(preset="pqn-cartpole").total_timesteps <= 500_000
    assert _final_score("pqn-cartpole", tmp_path, seed) >= 475


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_preset_a2c_cartpole_balances(tmp_path: Path, seed: int) -> None:
    assert _final_score("a2c-cartpole", tmp_path, seed) >= 400
