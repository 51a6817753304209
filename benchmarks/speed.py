"""This package against stable-baselines3: the same work, alternating in one process, told as ratios.

Run `python benchmarks/speed.py --case dqn --rounds 5` with the extra `bench` installed. Both sides train the same
number of environment steps with the same settings and one torch thread, ours with all its files and checkpoints;
imports, start-up, the random warm-up of a replay, evaluation and (with `--compile`) compilation are left out of the
time. Evaluations afterwards show whether both learned the same.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.workflows import evaluate, train

EVAL_EPISODES = 20


@dataclass(frozen=True)
class Case:
    """The same work for both sides."""

    settings: str
    preset: str
    algo_kwargs: dict[str, Any]
    make_peer: Callable[[int], Any]
    """Makes stable-baselines3's model for a seed."""
    steps: int
    """Environment steps of one training."""
    iteration: int
    """Environment steps between two marks of the clock."""
    warm_up: int
    """Environment steps without updates."""


def ppo_peer(seed: int) -> Any:
    """Return PPO with the RL Zoo's settings for CartPole."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    return PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda remaining: 0.001 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
        seed=seed,
        device="cpu",
    )


def dqn_peer(seed: int) -> Any:
    """Return DQN with one gradient step per environment step."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    return DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=1, seed=seed),
        learning_rate=5e-4,
        batch_size=64,
        buffer_size=50_000,
        learning_starts=1_000,
        gamma=0.98,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=250,
        exploration_fraction=0.5,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
    )


def sac_peer(seed: int) -> Any:
    """Return SAC with its defaults and the RL Zoo's learning rate for Pendulum."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_util import make_vec_env

    return SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=1, seed=seed),
        learning_rate=1e-3,
        batch_size=256,
        learning_starts=1_000,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )


CASES = {
    "ppo": Case(
        settings="CartPole-v1, 8 envs, 32 steps, 20 epochs, minibatch 256, 64x64",
        preset="ppo-cartpole",
        algo_kwargs={},
        make_peer=ppo_peer,
        steps=100_000,
        iteration=8 * 32,
        warm_up=0,
    ),
    "dqn": Case(
        settings="CartPole-v1, 64x64, batch 64, one gradient step per environment step",
        preset="dqn-cartpole",
        algo_kwargs={
            "learning_rate": 5e-4,
            "learning_rate_schedule": None,
            "n_step": 1,
            "batch_size": 64,
            "buffer_size": 50_000,
            "learning_starts": 1_000,
            "gamma": 0.98,
            "train_interval": 1,
            "gradient_steps": 1,
            "target_update_interval": 250,
            "epsilon_schedule": {"type": "linear", "end": 0.05, "duration": 0.5},
            "hidden_sizes": [64, 64],
        },
        make_peer=dqn_peer,
        steps=20_000,
        iteration=1,
        warm_up=1_000,
    ),
    "sac": Case(
        settings="Pendulum-v1, 256x256, batch 256, one gradient step per environment step",
        preset="sac-pendulum",
        algo_kwargs={
            "learning_rate": 1e-3,
            "batch_size": 256,
            "buffer_size": 1_000_000,
            "learning_starts": 1_000,
            "train_interval": 1,
            "gradient_steps": 1,
            "hidden_sizes": [256, 256],
        },
        make_peer=sac_peer,
        steps=5_000,
        iteration=1,
        warm_up=1_000,
    ),
}


@dataclass
class Measurement:
    """One training."""

    steps_per_second: float
    """Over the whole training, files and checkpoints included."""
    median_steps_per_second: float
    """Of the median iteration, which bursts of other load do not touch."""
    eval_return: float


class Stopwatch(Callback):
    """Notes when each iteration ends; the first one, which imports and compiles, is left out."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_update_end(self, event: TrainingEvent) -> None:
        """Note the end of an iteration."""
        self.times.append(time.perf_counter())


def rates(times: list[float], iteration: int) -> tuple[float, float]:
    """Return steps per second over all iterations and of the median one."""
    durations = np.diff(times)
    return iteration * len(durations) / float(durations.sum()), iteration / float(np.median(durations))


def measure_ours(case: Case, config: TrainConfig) -> Measurement:
    """Train with this package as a user would: files, metrics and checkpoints included."""
    stopwatch = Stopwatch()
    result = train(config, callbacks=[stopwatch])
    score = evaluate(result.run_dir, num_episodes=EVAL_EPISODES).metrics["eval_return_mean"]
    return Measurement(*rates(stopwatch.times, case.iteration), score)


def measure_peer(case: Case, seed: int, steps: int) -> Measurement:
    """Train with stable-baselines3."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    times: list[float] = []

    class IterationClock(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            times.append(time.perf_counter())

    model = case.make_peer(seed)
    model.learn(steps, callback=IterationClock())
    times.append(time.perf_counter())
    returns, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=EVAL_EPISODES, return_episode_rewards=True)
    return Measurement(*rates(times[1 + case.warm_up // case.iteration :], case.iteration), float(np.mean(returns)))


def run(name: str, rounds: int, steps: int, *, compiled: bool) -> dict[str, Any]:
    """Alternate the two and return the ratios."""
    case = CASES[name]
    measure_peer(case, 0, case.warm_up + 2 * case.iteration + 100)  # imports of both sides happen here
    rows: list[dict[str, Any]] = []
    for seed in range(1, rounds + 1):
        with tempfile.TemporaryDirectory() as output_dir:
            config = load_config(
                preset=case.preset,
                overrides={
                    "seed": seed,
                    "total_timesteps": steps,
                    "eval_episodes": 0,
                    "torch_threads": 1,
                    "output_dir": output_dir,
                    **({"algo_kwargs.compile": True} if compiled else {}),
                },
                # Not as overrides, where None means that nothing is said.
                set_values=[f"algo_kwargs.{key}={json.dumps(value)}" for key, value in case.algo_kwargs.items()],
            )
            ours = measure_ours(case, config)
        peer = measure_peer(case, seed, steps)
        ratio = ours.steps_per_second / peer.steps_per_second
        median_ratio = ours.median_steps_per_second / peer.median_steps_per_second
        print(
            f"seed {seed}: ours {ours.steps_per_second:.0f} steps/s (eval {ours.eval_return:.1f}), "
            f"stable-baselines3 {peer.steps_per_second:.0f} (eval {peer.eval_return:.1f}), "
            f"ratio {ratio:.2f}, of median iterations {median_ratio:.2f}",
            flush=True,
        )
        rows.append(
            {
                "seed": seed,
                "ratio": ratio,
                "median_ratio": median_ratio,
                "ours": vars(ours),
                "stable_baselines3": vars(peer),
            }
        )
    ratios = [row["ratio"] for row in rows]
    summary = {
        "benchmark": f"speed-{name}",
        "settings": f"{case.settings}, one torch thread",
        "compiled": compiled,
        "total_timesteps": steps,
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "median_iteration_ratio": statistics.median(row["median_ratio"] for row in rows),
        "rounds": rows,
        "versions": {name: version(name) for name in ("axiomrl", "stable_baselines3", "torch", "gymnasium")},
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
    }
    print(f"ratio {summary['ratio_median']:.2f} (from {summary['ratio_min']:.2f} to {summary['ratio_max']:.2f})")
    return summary


def main() -> None:
    """Parse arguments, measure, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=tuple(CASES), required=True, help="what to measure")
    parser.add_argument("--rounds", type=int, default=5, help="trainings of each, one seed per round")
    parser.add_argument("--steps", type=int, help="environment steps per training")
    parser.add_argument("--compile", action="store_true", help="measure the compiled loss (ppo)")
    parser.add_argument("--output", type=Path, help="write the summary as JSON")
    arguments = parser.parse_args()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    steps = arguments.steps or CASES[arguments.case].steps
    summary = run(arguments.case, arguments.rounds, steps, compiled=arguments.compile)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
