"""Off-policy learning itself: what a broken target, loss or discount cannot reach. The presets' bars are slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corridor_envs import BRIBE, CONSOLATION, WAGE
from rl_training.algorithms import sac
from rl_training.data.mask_store import MaskStore
from rl_training.data.replay import Replay
from rl_training.experiment.config import validate_config
from rl_training.experiment.configuration.config_files import load_config
from rl_training.runtime.workflows import evaluate, train

SMALL: dict[str, Any] = {
    "learning_rate": 3e-3,
    "gamma": 0.9,
    "batch_size": 32,
    "buffer_size": 2000,
    "learning_starts": 200,
    "hidden_sizes": [32],
}
DQN_SETTINGS: dict[str, Any] = {
    "train_interval": 2,
    "target_update_interval": 50,
    "epsilon_schedule": {"type": "linear", "end": 0.1, "duration": 0.6},
}
SUPPORT: dict[str, Any] = {"v_min": -1.0, "v_max": 2.0, "num_atoms": 31}
SOFT_SETTINGS: dict[str, Any] = {"temperature": 0.02, "tau": 0.05}
CORRIDOR: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dqn": ("Discrete", 800, DQN_SETTINGS),
    "double_dqn": ("Discrete", 800, DQN_SETTINGS),
    "c51": ("Discrete", 800, {**DQN_SETTINGS, **SUPPORT}),
    "qr_dqn": ("Discrete", 1500, {**DQN_SETTINGS, "num_quantiles": 10}),
    "rainbow": ("Discrete", 800, {**SUPPORT, "train_interval": 2, "target_update_interval": 50}),
    "discrete_sac": ("Discrete", 800, SOFT_SETTINGS),
    "sac": ("Box", 800, SOFT_SETTINGS),
    "tqc": ("Box", 800, {**SOFT_SETTINGS, "num_quantiles": 5, "dropped_quantiles": 1}),
    "crossq": ("Box", 800, {"temperature": 0.02, "critic_hidden_sizes": None, "policy_delay": 1}),
    "td3": ("Box", 1500, {"tau": 0.05, "exploration_noise": 0.5}),
    "ddpg": ("Box", 1500, {"tau": 0.05, "exploration_noise": 0.5}),
}


def _train(output_dir: Path, algo: str, task: str, steps: int, settings: dict[str, Any], *, seed: int = 0) -> float:
    """Train on a task of `corridor_envs` and return the final policy's mean return."""
    config = validate_config(
        {
            "algo": algo,
            "env_id": f"corridor_envs:Corridor/{task}-v0",
            "seed": seed,
            "total_timesteps": steps,
            "output_dir": str(output_dir),
            "device": "cpu",
            "num_envs": 2,
            "eval_episodes": 10,
            "checkpoint_interval": 1_000_000,
            "torch_threads": 1,
            "tracking": {"tensorboard": False},
            "algo_kwargs": {**SMALL, **settings},
        }
    )
    score: float = train(config).metrics["eval_return_mean"]
    return score


def _walk(output_dir: Path, algo: str, *, seed: int = 0, **changes: Any) -> float:
    task, steps, settings = CORRIDOR[algo]
    return _train(output_dir, algo, task, changes.pop("steps", steps), {**settings, **changes}, seed=seed)


@pytest.mark.parametrize("algo", CORRIDOR)
def test_the_far_reward_is_learned(tmp_path: Path, algo: str) -> None:
    assert _walk(tmp_path, algo) == 1.0


@pytest.mark.parametrize("algo", ["dqn", "discrete_sac", "sac", "td3"])
def test_without_a_discounted_successor_only_the_near_reward_is_learned(tmp_path: Path, algo: str) -> None:
    assert _walk(tmp_path, algo, gamma=0.0, steps=500) == pytest.approx(CONSOLATION)


def test_an_actor_loss_of_the_wrong_sign_walks_past_the_near_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right_loss = sac.SAC.actor_loss

    def wrong_loss(algorithm: sac.SAC, *arguments: Any) -> Any:
        loss, metrics = right_loss(algorithm, *arguments)
        return -loss, metrics

    monkeypatch.setattr(sac.SAC, "actor_loss", wrong_loss)
    assert _walk(tmp_path, "sac", gamma=0.0, steps=500) > CONSOLATION


def test_the_clock_ends_nothing_and_a_learner_who_thinks_so_takes_the_bribe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**DQN_SETTINGS, "learning_rate": 1e-2, "loss": "squared", "target_update_interval": 10}
    assert _train(tmp_path / "right", "dqn", "Shifts", 800, settings) == WAGE
    right_add = Replay.add

    def wrong_add(self: Replay, action: Any, reward: Any, terminated: Any, truncated: Any, *observations: Any) -> None:
        right_add(self, action, reward, terminated | truncated, truncated, *observations)

    monkeypatch.setattr(Replay, "add", wrong_add)
    assert _train(tmp_path / "wrong", "dqn", "Shifts", 800, settings) == BRIBE


@pytest.mark.parametrize("task", ["Toll", "TollWithClock"])
@pytest.mark.parametrize("algo", ["dqn", "discrete_sac"])
def test_what_is_illegal_is_worth_nothing_and_a_learner_who_forgets_it_works_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, task: str
) -> None:
    own = {"loss": "squared", "target_update_interval": 10, "train_interval": 1} if algo == "dqn" else {"tau": 0.2}
    settings = {**CORRIDOR[algo][2], "learning_rate": 1e-2, **own}
    assert _train(tmp_path / "right", algo, task, 700, settings) == BRIBE
    monkeypatch.setattr(MaskStore, "get", lambda self, serials, into=None: None)
    # Whoever works is paid once; then nothing but leaving is legal.
    assert _train(tmp_path / "wrong", algo, task, 700, settings) == WAGE


def test_a_memory_brings_the_sign_of_a_maze_to_its_fork(tmp_path: Path) -> None:
    """Without one the return is 0.45 at best."""
    config = validate_config(
        {
            "algo": "dqn",
            "env_id": "rl_training.envs.memory_tasks:TMaze-v0",
            "seed": 0,
            "total_timesteps": 3_000,
            "output_dir": str(tmp_path),
            "device": "cpu",
            "num_envs": 2,
            "eval_episodes": 0,
            "checkpoint_interval": 1_000_000,
            "torch_threads": 1,
            "env_kwargs": {"length": 3, "max_episode_steps": 20},
            "tracking": {"tensorboard": False},
            "algo_kwargs": {
                "learning_rate": 3e-3,
                "gamma": 0.95,
                "batch_size": 16,
                "buffer_size": 3_000,
                "learning_starts": 200,
                "train_interval": 4,
                "target_update_interval": 100,
                "n_step": 2,
                "epsilon_schedule": {"type": "linear", "end": 0.1, "duration": 0.5},
                "recurrent": {"size": 16, "sequence_length": 20, "burn_in": 0},
            },
        }
    )
    score = evaluate(train(config).run_dir, num_episodes=40, seed=3).metrics["eval_return_mean"]
    assert score >= 0.95


# -- the presets' own bars -----------------------------------------------------------------------

BARS = {
    "dqn-tmaze": 0.95,
    "dqn-cartpole": 475,
    "dqn-mountaincar": -120,
    "qr_dqn-cartpole": 450,
    "discrete_sac-cartpole": 450,
    "sac-pendulum": -180,
    "td3-pendulum": -200,
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("preset", BARS)
def test_a_preset_reaches_its_bar(tmp_path: Path, preset: str, seed: int) -> None:
    config = load_config(preset=preset, overrides={"seed": seed, "output_dir": str(tmp_path), "device": "cpu"})
    result = train(config)
    assert result.checkpoint_path is not None
    # The mean of 100 episodes of the final policy, played apart from the run.
    score = evaluate(result.checkpoint_path, num_episodes=100).metrics["eval_return_mean"]
    assert score >= BARS[preset]
