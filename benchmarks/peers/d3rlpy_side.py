"""Trains one of d3rlpy's algorithms from arrays and evaluates it; run by the interpreter that has d3rlpy.

    PYTHON benchmarks/peers/d3rlpy_side.py --data DATA.npz --settings SETTINGS.json --output RESULT.json

Imports nothing of this package: the two need different versions of others. Batches are drawn with equal probabilities
from the arrays and handed to `update`: d3rlpy's own sampler makes them transition by transition, which takes longer
than the update, and has no final observation of a truncated episode.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium as gym
import numpy as np
import torch
from d3rlpy.dataset import TransitionMiniBatch
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers import AdamFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

VERSIONS = ("d3rlpy", "torch", "gymnasium", "numpy")


def make_algorithm(settings: dict[str, Any], observations: np.ndarray) -> Any:
    """Return the algorithm with the settings that our configuration has in d3rlpy's names."""
    arguments = dict(settings["arguments"])
    for part, sizes in settings["encoders"].items():
        arguments[f"{part}encoder_factory"] = VectorEncoderFactory(list(sizes), activation=settings["activation"])
    for part in settings["cosine"]:
        schedule = CosineAnnealingLRFactory(T_max=settings["updates"])
        arguments[f"{part}optim_factory"] = AdamFactory(lr_scheduler_factory=schedule)
    if settings["normalize_observation"]:
        arguments["observation_scaler"] = StandardObservationScaler(
            mean=observations.mean(axis=0, dtype=np.float64), std=observations.std(axis=0, dtype=np.float64)
        )
    if settings["action_bounds"] is not None:
        low, high = (np.array(bound, dtype=np.float32) for bound in settings["action_bounds"])
        arguments["action_scaler"] = MinMaxActionScaler(minimum=low, maximum=high)
    algorithm = getattr(d3rlpy.algos, settings["config"])(**arguments).create(device="cpu:0")
    algorithm.create_impl(observations.shape[1:], settings["action_size"])
    return algorithm


def learn(algorithm: Any, columns: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Make the updates."""
    generator = np.random.default_rng(settings["seed"])
    size = settings["arguments"]["batch_size"]
    ones = np.ones((size, 1), dtype=np.float32)
    for _ in range(settings["updates"]):
        rows = generator.integers(len(columns["rewards"]), size=size)
        batch = {name: column[rows] for name, column in columns.items()}
        algorithm.update(TransitionMiniBatch(**batch, next_actions=batch["actions"], intervals=ones, transitions=[]))


def play(algorithm: Any, settings: dict[str, Any]) -> list[float]:
    """Return the returns of one deterministic episode per seed, all played side by side."""
    seeds = settings["evaluation_seeds"]
    envs = [gym.make(settings["env_id"], **settings["env_kwargs"]) for _ in seeds]
    seen = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
    returns, running = np.zeros(len(seeds)), list(range(len(seeds)))
    while running:
        actions = algorithm.predict(seen[running].astype(np.float32))
        still = []
        for place, action in zip(running, actions, strict=True):
            seen[place], reward, terminated, truncated, _ = envs[place].step(action)
            returns[place] += float(reward)
            if not (terminated or truncated):
                still.append(place)
        running = still
    return [float(value) for value in returns]


def main() -> None:
    """Train, evaluate, and write the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--data", "--settings", "--output"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args()
    settings = json.loads(options.settings.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    d3rlpy.seed(settings["seed"])
    with np.load(options.data) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    algorithm = make_algorithm(settings, columns["observations"])
    wall, processor = time.perf_counter(), time.process_time()
    learn(algorithm, columns, settings)
    times = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor}
    returns = play(algorithm, settings)
    row = {
        "steps": settings["updates"],
        **{name: round(value, 1) for name, value in times.items()},
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "eval_episodes": len(returns),
        "versions": {name: version(name) for name in VERSIONS},
    }
    options.output.write_text(json.dumps(row), encoding="utf-8")


if __name__ == "__main__":
    main()
