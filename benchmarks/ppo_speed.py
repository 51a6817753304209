"""PPO against stable-baselines3: steps per second on CartPole with the RL Zoo's settings, alternating in one process.

Run `python benchmarks/ppo_speed.py --rounds 5` with the extra `bench` installed. Both train the same number of
environment steps with one torch thread; start-up, evaluation and (with `--compile`) compilation are left out of the
time. The evaluation after training shows whether both learned the same.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import tempfile
import time
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
ROLLOUT = 8 * 32
WARM_UP_STEPS = 2_000


@dataclass
class Measurement:
    """One training."""

    steps_per_second: float
    """Over the whole training, files and checkpoints included."""
    median_steps_per_second: float
    """Of the median iteration (one rollout and its updates), which bursts of other load do not touch."""
    eval_return: float


class Stopwatch(Callback):
    """Notes when each iteration ends; the first one, which imports and compiles, is left out."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_update_end(self, event: TrainingEvent) -> None:
        """Note the end of an iteration."""
        self.times.append(time.perf_counter())


def rates(times: list[float]) -> tuple[float, float]:
    """Return steps per second over all iterations and of the median one."""
    durations = np.diff(times)
    return ROLLOUT * len(durations) / float(durations.sum()), ROLLOUT / float(np.median(durations))


def measure_ours(config: TrainConfig) -> Measurement:
    """Train with this package as a user would: files, metrics and checkpoints included."""
    stopwatch = Stopwatch()
    result = train(config, callbacks=[stopwatch])
    score = evaluate(result.run_dir, num_episodes=EVAL_EPISODES).metrics["eval_return_mean"]
    return Measurement(*rates(stopwatch.times), score)


def measure_sb3(seed: int, total_timesteps: int) -> Measurement:
    """Train with stable-baselines3 and the RL Zoo's settings."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    model = PPO(
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
    times: list[float] = []

    class RolloutClock(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            times.append(time.perf_counter())

    model.learn(total_timesteps, callback=RolloutClock())
    times.append(time.perf_counter())
    returns, _ = evaluate_policy(
        model, make_vec_env("CartPole-v1"), n_eval_episodes=EVAL_EPISODES, return_episode_rewards=True
    )
    return Measurement(*rates(times[1:]), float(np.mean(returns)))


def run(rounds: int, total_timesteps: int, *, compiled: bool) -> dict[str, Any]:
    """Alternate the two and return the ratios."""
    measure_sb3(0, WARM_UP_STEPS)  # imports of both sides happen here
    rows: list[dict[str, Any]] = []
    for seed in range(1, rounds + 1):
        with tempfile.TemporaryDirectory() as output_dir:
            config = load_config(
                preset="ppo-cartpole",
                overrides={
                    "seed": seed,
                    "total_timesteps": total_timesteps,
                    "eval_episodes": 0,
                    "output_dir": output_dir,
                    "algo_kwargs.compile": compiled,
                },
            )
            ours = measure_ours(config)
        peer = measure_sb3(seed, total_timesteps)
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
        "benchmark": "ppo_speed",
        "settings": "CartPole-v1, 8 envs, 32 steps, 20 epochs, minibatch 256, 64x64, one torch thread",
        "compiled": compiled,
        "total_timesteps": total_timesteps,
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
    parser.add_argument("--rounds", type=int, default=5, help="trainings of each, one seed per round")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps per training")
    parser.add_argument("--compile", action="store_true", help="measure the compiled loss")
    parser.add_argument("--output", type=Path, help="write the summary as JSON")
    arguments = parser.parse_args()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    summary = run(arguments.rounds, arguments.steps, compiled=arguments.compile)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
