"""Gradient steps per second of the planning family's learner: batches drawn, targets made, networks moved.

Run `python benchmarks/learner_speed.py`: CartPole's preset of each algorithm, batches of 256 windows, five imagined
steps, one thread. Times are of the processor, so that other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from records import origin
from rl_training.algorithms.muzero import MuZero, exploration
from rl_training.algorithms.planning.batches import Draws
from rl_training.data.samplers import UniformSampler
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.envs.make import make_vector_env
from rl_training.experiment.config import algorithm_params
from rl_training.experiment.configuration.config_files import load_config
from rl_training.runtime.planning_collector import PlanningCollector

ALGORITHMS = ("muzero", "gumbel_muzero", "efficientzero")
CAPACITY = 10_000
CONTROLS = {"learning_rate": 1e-3, "num_simulations": 4}


class Learner:
    """An algorithm with a filled replay."""

    def __init__(self, algo: str, batch_size: int, steps: int) -> None:
        settings = {"algo_kwargs.batch_size": batch_size, "algo_kwargs.unroll_steps": 5}
        config = load_config(preset=f"{algo}-cartpole", overrides=settings)
        self.params: Any = algorithm_params(config)
        self.config = config
        env = make_vector_env(config.task_name, {}, mode="training", num_envs=8, backend="local_sync")
        device = torch.device("cpu")
        self.algorithm = MuZero(
            self.params, env.observation_space, env.action_space, device=device, generator=torch.Generator()
        )
        generator = np.random.default_rng(0)
        self.draws = Draws(generator, generator, torch.Generator())

        def make_replay(action: np.ndarray, mask: np.ndarray | None) -> TrajectoryReplay:
            sampler = UniformSampler(CAPACITY)
            return TrajectoryReplay(env.observation_space, action, sampler, actions=2, capacity=CAPACITY, num_envs=8)

        collector = PlanningCollector(env, self.algorithm, make_replay, seed=0, device=device)
        while collector.replay.count < steps:
            collector.follow(self.algorithm.plan(*collector.shown(), CONTROLS, generator))
        self.replay = collector.replay

    def update(self) -> None:
        """Make one gradient step, from drawing the batch on."""
        rows, weight = self.replay.draw(self.params.batch_size, 0.0, self.draws.replay)
        batch = self.algorithm.batches.make(
            self.replay,
            rows,
            weight,
            num_simulations=self.params.num_simulations,
            exploration=exploration(CONTROLS),
            total_timesteps=self.config.total_timesteps,
            draws=self.draws,
        )
        self.algorithm.update(batch, CONTROLS, self.draws.augmentation)


def measure(algo: str, batch_size: int, rounds: int, updates: int) -> dict[str, Any]:
    """Return updates per second, the median over rounds."""
    learner = Learner(algo, batch_size, steps=2_000)
    learner.update()
    rates = []
    for _ in range(rounds):
        started = time.thread_time()
        for _ in range(updates):
            learner.update()
        rates.append(updates / (time.thread_time() - started))
    return {
        "algo": algo,
        "reanalyze_ratio": learner.params.reanalyze_ratio,
        "updates_per_second": round(statistics.median(rates), 1),
        "smallest": round(min(rates), 1),
        "largest": round(max(rates), 1),
    }


def main() -> None:
    """Parse arguments, measure, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", action="append", choices=ALGORITHMS, help="which to measure; all by default")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--updates", type=int, default=50, help="gradient steps per round")
    parser.add_argument("--batch-size", type=int, default=256, help="windows per gradient step")
    parser.add_argument("--output", type=Path, help="write the summary as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = []
    for algo in arguments.algo or ALGORITHMS:
        cases.append(measure(algo, arguments.batch_size, arguments.rounds, arguments.updates))
        print(", ".join(f"{name} {value}" for name, value in cases[-1].items()), flush=True)
    if arguments.output is not None:
        summary = {
            "benchmark": "learner_speed",
            "settings": f"CartPole-v1, batches of {arguments.batch_size}, 5 imagined steps, one thread",
            "cases": cases,
            **origin(),
        }
        arguments.output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
