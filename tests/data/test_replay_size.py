"""The estimate of a replay's bytes is what its arrays take."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from replay_parts import large_arrays
from rl_training.data.hindsight import GoalTask, HindsightReplay
from rl_training.data.replay import Replay
from rl_training.data.replay_size import ReplaySize
from rl_training.data.samplers import PrioritizedSampler, Sampler, UniformSampler
from rl_training.envs.normalize import Normalizers, ObservationNormalizer, RewardNormalizer

VECTOR = spaces.Box(-np.inf, np.inf, (17,), np.float64)  # kept as float32
IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
GOALS = spaces.Dict({key: spaces.Box(-1, 1, (3,), np.float32) for key in ("observation", "achieved_goal")})
GOALS["desired_goal"] = GOALS["observation"]
MIXED = spaces.Dict({"picture": IMAGE, "step": spaces.Discrete(9), "numbers": VECTOR})
TASK = GoalTask(reward=lambda achieved, desired: np.zeros(len(achieved)))
NUM_ENVS = 3
NORMALIZERS = Normalizers(ObservationNormalizer(VECTOR, 10.0), RewardNormalizer(NUM_ENVS, 0.9, 10.0))
FACTS: dict[str, dict[str, Any]] = {
    "vector": {"space": VECTOR},
    "n-step": {"space": VECTOR, "n_step": 5},
    "image": {"space": IMAGE},
    "stacked": {"space": IMAGE, "stack": 4},
    "dict": {"space": MIXED},
    "prioritized": {"space": VECTOR, "prioritized": True, "n_step": 3},
    "hindsight": {"space": GOALS, "hindsight": True},
    "normalised": {"space": VECTOR, "n_step": 5, "normalizers": NORMALIZERS},  # doubles, and each of the rewards
    "masked": {"space": VECTOR, "mask": np.ones((NUM_ENVS, 5), np.bool_)},
}


def action_of(kind: str) -> np.ndarray:
    return np.zeros((NUM_ENVS, 6), np.float32) if kind in ("vector", "hindsight") else np.zeros(NUM_ENVS, np.int64)


def size_of(kind: str) -> ReplaySize:
    fact = {"n_step": 1, "stack": 1, "prioritized": False, "hindsight": False, **FACTS[kind]}
    mask = fact.pop("mask", None)
    fact["mask_width"] = 0 if mask is None else mask.shape[1]
    return ReplaySize.of(fact.pop("space"), action_of(kind), num_envs=NUM_ENVS, **fact)


def replay_of(kind: str, capacity: int) -> Replay:
    fact = FACTS[kind]
    sampler: Sampler = UniformSampler(capacity)
    if fact.get("prioritized"):
        sampler = PrioritizedSampler(capacity, alpha=0.5, eps=1e-6)
    settings: dict[str, Any] = {"capacity": capacity, "num_envs": NUM_ENVS, "gamma": 0.9, "stack": fact.get("stack", 1)}
    settings["normalizers"] = fact.get("normalizers")
    if fact.get("hindsight"):
        return HindsightReplay(
            fact["space"], action_of(kind), sampler, task=TASK, strategy="future", ratio=0.8, **settings
        )
    return Replay(fact["space"], action_of(kind), sampler, n_step=fact.get("n_step", 1), **settings)


@pytest.mark.parametrize("capacity", [100, 1000, 4096])
@pytest.mark.parametrize("kind", FACTS)
def test_the_estimate_is_the_bytes_of_the_arrays(kind: str, capacity: int) -> None:
    size, replay = size_of(kind), replay_of(kind, capacity)
    if "mask" in FACTS[kind]:  # its column is made when the first mask comes
        replay.begin(np.zeros((NUM_ENVS, 17)), FACTS[kind]["mask"])
    assert size.columns(capacity) + size.index(capacity) == large_arrays(replay, capacity)


def test_a_vector_by_hand() -> None:
    # Two serial numbers, six actions, reward, discount, environment; an observation of 17 numbers.
    width = 2 * 8 + 6 * 4 + 4 + 4 + 4
    spare = 2 * 2 * (1 + 1 + 1) * NUM_ENVS
    assert size_of("vector").columns(8000) == 8000 * width + (8000 + 1000 + spare) * 17 * 4
    assert size_of("vector").index(8000) == 0
    # Normalised when it is drawn: five rewards instead of their sum, and numbers in the precision they came in.
    width, spare = 2 * 8 + 8 + 5 * 4 + 4 + 4, 2 * 2 * (5 + 1 + 1) * NUM_ENVS
    assert size_of("normalised").columns(8000) == 8000 * width + (8000 + 1000 + spare) * 17 * 8
    assert size_of("prioritized").index(8000) == 2 * 8192 * 8
    assert size_of("hindsight").index(8000) == 8000 * 2 * 8


def test_only_what_is_filled_takes_memory() -> None:
    replay, steps = replay_of("image", 200_000), 400
    size, process = size_of("image"), psutil.Process()
    frame, running = np.ones((NUM_ENVS, 4, 36, 36), np.uint8), np.zeros(NUM_ENVS, bool)
    before = process.memory_info().rss
    replay.begin(frame)
    for _ in range(steps):
        replay.add(action_of("image"), np.zeros(NUM_ENVS), running, running, frame, frame)
    used = process.memory_info().rss - before
    filled = size.columns(steps * NUM_ENVS)
    assert filled < size.columns(replay.capacity) / 100
    assert used < 3 * filled
