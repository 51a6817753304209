"""How the cost of an environment step grows with the network's width, the environments and a replay's size.

Both sides train with the same settings; every point is told relative to the smallest of its row, and this package
relative to stable-baselines3 at the same point. Replays are full, because a larger one costs only where its rows are
used: ours is filled by random steps, the peer's by hand, which its slower steps would make tedious. Times are of the
processor, so that other programs on the machine disturb less.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from peers.stable_baselines3_models import make_peer
from records import OURS, SB3, why_missing
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.config_files import load_config
from speed_cases.speed_parts import Effort, Outcome, alternate, quotients
from speed_cases.training_side import Marks, train_ours, train_peer

AXES = {"width": (64, 128, 256, 512), "environments": (1, 4, 16, 64), "replay": (10_000, 100_000, 1_000_000)}
ROLLOUT = 1_024
_PRESETS = {"ppo": "ppo-cartpole", "dqn": "dqn-cartpole", "sac": "sac-pendulum"}
_SETTINGS = {
    "ppo": ("algo_kwargs.minibatch_size=256", "algo_kwargs.update_epochs=4"),
    "dqn": (
        "algo_kwargs.n_step=1",
        "algo_kwargs.batch_size=64",
        "algo_kwargs.buffer_size=10_000",
        "algo_kwargs.target_update_interval=250",
        # The same all along, so that both sides ask their networks equally often.
        "algo_kwargs.epsilon=0.05",
        "algo_kwargs.epsilon_schedule={type: linear, end: 0.05, duration: 0.5}",
    ),
    "sac": ("algo_kwargs.batch_size=64", "algo_kwargs.buffer_size=10_000"),
}
_STEPS = {"ppo": (16_384, 4_096), "dqn": (4_096, 512), "sac": (1_024, 128)}
"""Environment steps whose cost is measured, and how many in a hurry."""


@dataclass(frozen=True)
class Point:
    """One setting of one algorithm."""

    algo: str
    axis: str
    value: int

    def config(self, seed: int, effort: Effort, directory: str) -> TrainConfig:
        """Return the configuration of both sides."""
        envs = self.value if self.axis == "environments" else 8 if self.algo == "ppo" else 1
        width = self.value if self.axis == "width" else 64
        settings = [*_SETTINGS[self.algo], f"algo_kwargs.hidden_sizes=[{width},{width}]", f"num_envs={envs}"]
        steps = effort.choose(*_STEPS[self.algo])
        if self.algo == "ppo":
            warm_up = 0
            settings.append(f"algo_kwargs.num_steps={ROLLOUT // envs}")
        else:
            # One gradient step per environment step, in rounds of as many as there are environments.
            warm_up = self.value if self.axis == "replay" else 256
            settings += [f"algo_kwargs.train_interval={envs}", f"algo_kwargs.gradient_steps={envs}"]
            settings += [f"algo_kwargs.learning_starts={warm_up}"]
            if self.axis == "replay":
                settings.append(f"algo_kwargs.buffer_size={self.value}")
        total = warm_up + steps + max(envs, ROLLOUT if self.algo == "ppo" else 0)
        fixed = {"seed": seed, "total_timesteps": total, "checkpoint_interval": total, "eval_episodes": 0}
        return load_config(
            preset=_PRESETS[self.algo],
            overrides={**fixed, "torch_threads": 1, "output_dir": directory},
            set_values=settings,
        )


def points(effort: Effort) -> list[list[Point]]:
    """Return the rows of points; in a hurry two of each."""

    def row(algo: str, axis: str, values: Sequence[int]) -> list[Point]:
        chosen = effort.choose(tuple(values), (values[0], values[-1] if axis != "replay" else values[1]))
        return [Point(algo, axis, value) for value in chosen]

    return [row(algo, *axis) for algo in _PRESETS for axis in AXES.items() if (algo, axis[0]) != ("ppo", "replay")]


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    return "64x64, batch 64 (ppo: rollouts of 1,024, minibatch 256, 4 epochs) but for what is varied, one thread"


def measure(effort: Effort) -> Outcome:
    """Train at every point by both sides in turn."""
    reason = why_missing(SB3)
    sides = {OURS: _train_ours, SB3: _train_peer} if reason is None else {OURS: _train_ours}
    ratios: dict[str, list[float]] = {}
    growth: list[dict[str, Any]] = []
    for row in points(effort):
        smallest: dict[str, float] = {}
        for point in row:
            rounds = alternate({name: partial(side, point, effort) for name, side in sides.items()}, effort.rounds)
            costs = {name: statistics.median(measured[name] for measured in rounds) for name in sides}
            smallest = smallest or costs
            entry: dict[str, Any] = {"algo": point.algo, "axis": point.axis, "value": point.value}
            for name, cost in costs.items():
                entry[f"{name}_microseconds_per_step"] = round(cost * 1e6, 1)
                entry[f"{name}_growth"] = round(cost / smallest[name], 2)
            print("scaling: " + ", ".join(f"{key} {value}" for key, value in entry.items()), flush=True)
            growth.append({**entry, "seconds_per_step": rounds})
            if reason is None:
                name = f"{point.algo} {point.axis} {point.value}: stable-baselines3"
                ratios[name] = quotients(rounds, SB3, OURS)
    return Outcome(
        ratios=ratios,
        missing=[] if reason is None else [reason],
        details={"growth": growth},
    )


def _train_ours(point: Point, effort: Effort, seed: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        config = point.config(seed, effort, directory)
        marks, _ = train_ours(config)
    return 1 / marks.rates(_warm_up(config))[0]


def _train_peer(point: Point, effort: Effort, seed: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        config = point.config(seed, effort, directory)
    model, warm_up = make_peer(config), _warm_up(config)
    if point.axis == "replay":
        _fill(model.replay_buffer)
        config = dataclasses.replace(config, total_timesteps=config.total_timesteps - warm_up)
        model.learning_starts = warm_up = 0
    torch.set_num_threads(1)
    marks, _ = train_peer(model, config, Marks())
    return 1 / marks.rates(warm_up)[0]


def _fill(replay: Any) -> None:
    """Make a replay of the peer full of numbers."""
    generator = np.random.default_rng(0)
    for rows in (replay.observations, replay.next_observations, replay.rewards):
        rows[:] = generator.standard_normal(rows.shape, dtype=np.float32)
    replay.actions[:] = 0
    replay.full = True


def _warm_up(config: TrainConfig) -> int:
    return 0 if config.algo == "ppo" else algorithm_params(config).learning_starts
