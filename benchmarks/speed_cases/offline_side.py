"""One side of the comparison of offline algorithms: learns from a dataset and writes its updates per second.

    python benchmarks/speed_cases/offline_side.py td3_bc ours 1 --output FILE

Two trainings of different lengths are timed, and their difference counts: reading the dataset, setting up and saving
are left out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from peers import d3rlpy_learners
from rl_training.data.datasets.episode import Episode
from rl_training.data.datasets.writer import Description, new_dataset
from rl_training.experiment.config import validate_config
from rl_training.runtime.workflows import train

NAME = "benchmark/random-v0"
OBSERVATION, ACTION = spaces.Box(-np.inf, np.inf, (11,), np.float32), spaces.Box(-1.0, 1.0, (3,), np.float32)
"""The sizes of Hopper."""
EPISODES, LENGTH = 50, 1000
UPDATES, QUICK_UPDATES, LEFT_OUT = 1_500, 200, 100


def main() -> None:
    """Learn and write the rates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algo")
    parser.add_argument("side", choices=("ours", "d3rlpy"))
    parser.add_argument("seed", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    updates = QUICK_UPDATES if options.quick else UPDATES
    learn = ours if options.side == "ours" else theirs
    with tempfile.TemporaryDirectory() as directory:
        long, short = learn(options.algo, options.seed, (updates + LEFT_OUT, LEFT_OUT), Path(directory))
    rates = [updates / (long[clock] - short[clock]) for clock in range(2)]
    found = dict(zip(("steps_per_second", "steps_per_second_of_the_clock"), rates, strict=True))
    options.output.write_text(json.dumps(found), encoding="utf-8")


def episodes(seed: int) -> list[dict[str, np.ndarray]]:
    """Return random episodes, every second one truncated, with one observation more than steps."""
    rng = np.random.default_rng(seed)
    ends = np.arange(1, LENGTH + 1) == LENGTH
    return [
        {
            "observations": rng.normal(size=(LENGTH + 1, *OBSERVATION.shape)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (LENGTH, *ACTION.shape)).astype(np.float32),
            "rewards": rng.normal(size=LENGTH).astype(np.float32),
            "terminals": ends & (number % 2 == 0),
            "timeouts": ends & (number % 2 == 1),
        }
        for number in range(EPISODES)
    ]


def _timed(function: Any, *arguments: Any) -> tuple[float, float]:
    processor, clock = time.process_time(), time.perf_counter()
    function(*arguments)
    return time.process_time() - processor, time.perf_counter() - clock


def ours(algo: str, seed: int, lengths: tuple[int, int], directory: Path) -> list[tuple[float, float]]:
    """Return processor and clock seconds of trainings of these lengths by this package."""
    os.environ["MINARI_DATASETS_PATH"] = str(directory / "datasets")
    with new_dataset(Description(NAME, OBSERVATION, ACTION, origin={})) as file:
        for one in episodes(seed):
            ends = one["terminals"], one["timeouts"]
            file.add(Episode(one["observations"], one["actions"], one["rewards"], *ends, infos={}, seed=None))
    raw = {
        "algo": algo,
        "dataset": NAME,
        "seed": seed,
        "output_dir": str(directory / "runs"),
        "torch_threads": 1,
        "tracking": {"tensorboard": False},
    }
    # The first training imports and allocates what the others find.
    configs = [validate_config({**raw, "total_timesteps": length}) for length in (LEFT_OUT, *lengths)]
    return [_timed(train, config) for config in configs][1:]


def theirs(algo: str, seed: int, lengths: tuple[int, int], directory: Path) -> list[tuple[float, float]]:
    """Return processor and clock seconds of trainings of these lengths by d3rlpy."""
    reason = d3rlpy_learners.why_missing()
    if reason is not None:
        raise SystemExit(reason)
    cut = [{**one, "observations": one["observations"][:-1]} for one in episodes(seed)]
    dataset = d3rlpy_learners.dataset_of(cut)
    learners = [d3rlpy_learners.make_learner(algo) for _ in range(3)]
    return [
        _timed(d3rlpy_learners.learn, learner, dataset, length)
        for learner, length in zip(learners, (LEFT_OUT, *lengths), strict=True)
    ][1:]


if __name__ == "__main__":
    main()
