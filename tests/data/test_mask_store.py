"""Action masks of a replay: each belongs to its observation, costs nothing where there is none, and is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.data.mask_store import MaskStore
from rl_training.data.replay import Replay
from rl_training.data.samplers import UniformSampler
from rl_training.runtime.recording.replay_archive import ReplayArchive

NUM_ENVS, CAPACITY = 2, 40


def _replay(*, n_step: int = 1, stack: int = 1, directory: Path | None = None) -> Replay:
    space = gym.spaces.Box(0, 1e6, (stack, 1) if stack > 1 else (1,), np.float32)
    settings: dict[str, Any] = {"capacity": CAPACITY, "num_envs": NUM_ENVS, "stack": stack, "directory": directory}
    return Replay(space, np.zeros(NUM_ENVS, np.int64), UniformSampler(CAPACITY), n_step=n_step, gamma=0.9, **settings)


def _mask(frames: np.ndarray) -> np.ndarray:
    """Return the masks [..., 3] that belong to frames [...]: two of three actions are legal."""
    return ~np.eye(3, dtype=bool)[frames.astype(int) % 3]


class World:
    """Environments whose every frame is a number of its own, which says what is legal in it."""

    def __init__(self, replay: Replay, seed: int = 0) -> None:
        self.replay = replay
        self.generator = np.random.default_rng(seed)
        self.frames = 0
        self.stacks = self._fresh()
        self.replay.begin(self._shown(self.stacks), _mask(self.stacks[:, -1]))

    def _fresh(self) -> np.ndarray:
        frames = self._frame()
        return np.repeat(frames[:, None], self.replay.observations.stack, axis=1)

    def _frame(self) -> np.ndarray:
        self.frames += NUM_ENVS
        return np.arange(self.frames - NUM_ENVS, self.frames, dtype=np.float32)

    def _shown(self, stacks: np.ndarray) -> np.ndarray:
        return stacks[..., None] if self.replay.observations.stack > 1 else stacks

    def step(self) -> None:
        final = np.concatenate((self.stacks[:, 1:], self._frame()[:, None]), axis=1)
        terminated, truncated = self.generator.random((2, NUM_ENVS)) < 0.15
        ended = terminated | truncated
        shown = np.where(ended[:, None], self._fresh(), final) if ended.any() else final
        final_view = self._shown(final)
        view = self._shown(shown) if ended.any() else final_view
        reward, action = np.zeros(NUM_ENVS, np.float32), np.zeros(NUM_ENVS, np.int64)
        masks = _mask(final[:, -1]), _mask(shown[:, -1])
        self.replay.add(action, reward, terminated, truncated, final_view, view, *masks)
        self.stacks = shown

    def check(self, replay: Replay) -> None:
        rows = np.arange(replay.oldest, replay.count) % CAPACITY
        gathered = replay.gather(rows, self.generator)
        for mask, seen in (("mask", "observation"), ("next_mask", "next_observation")):
            newest = gathered[seen].reshape(len(rows), -1)[:, -1]
            np.testing.assert_array_equal(gathered[mask], _mask(newest))


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("stack", [1, 3])
def test_every_mask_belongs_to_its_observation_over_ends_sums_stacks_and_restarts(n_step: int, stack: int) -> None:
    for seed in range(5):
        world = World(_replay(n_step=n_step, stack=stack), seed)
        for time in range(80):  # the rings wrap around
            world.step()
            if time == 50:
                world.stacks = world._fresh()
                world.replay.begin(world._shown(world.stacks), _mask(world.stacks[:, -1]))
            world.check(world.replay)
        (batch,), _ = world.replay.sample(8, world.generator, torch.device("cpu"))
        assert batch.mask is not None
        assert batch.mask.dtype == torch.bool


@pytest.mark.parametrize("mapped", [False, True])
def test_masks_are_saved_and_restored_with_the_rows(tmp_path: Path, mapped: bool) -> None:
    directory = tmp_path / "mapped" if mapped else None
    world = World(_replay(directory=directory))
    archive = ReplayArchive(world.replay)
    for time in range(60):
        world.step()
        if time % 13 == 0:
            archive.save(tmp_path)
    entries = archive.save(tmp_path)
    restored = _replay(directory=directory)
    ReplayArchive(restored).restore(tmp_path, entries, fork=False)
    restored.load_state_dict(world.replay.state_dict())
    assert restored.size > 20
    world.check(restored)


def test_without_masks_nothing_is_kept_saved_or_drawn() -> None:
    replay = _replay()
    shown, running = np.zeros((NUM_ENVS, 1), np.float32), np.zeros(NUM_ENVS, bool)
    replay.begin(shown)
    replay.add(np.zeros(NUM_ENVS, np.int64), np.zeros(NUM_ENVS, np.float32), running, running, shown, shown)
    assert replay.masks.width == 0
    assert not any(name.startswith("mask/") for name in replay.rows({"transitions": [0, 2], "observations": [0, 4]}))
    (batch,), _ = replay.sample(2, np.random.default_rng(0), torch.device("cpu"))
    assert batch.mask is batch.next_mask is None


def test_what_came_before_the_first_mask_and_without_one_allows_everything() -> None:
    store = MaskStore(4)
    store.put(np.array([0, 1]), None)
    assert store.get(np.array([0])) is None
    assert store.rows(0, 2) == {}
    store.put(np.array([2, 3]), np.array([[True, False], [False, True]]))
    assert store.get(np.array([0, 1, 2, 3])).tolist() == [[1, 1], [1, 1], [1, 0], [0, 1]]  # type: ignore[union-attr]
    store.put(np.array([6, 7]), None)  # over the places of 2 and 3
    assert store.get(np.array([6, 7])).all()  # type: ignore[union-attr]
    restored = MaskStore(4)
    restored.restore_rows(0, {})
    restored.restore_rows(2, {"illegal": np.array([[False, True]])})
    assert restored.get(np.array([1, 2])).tolist() == [[1, 1], [1, 0]]  # type: ignore[union-attr]


def test_an_end_that_leaves_nothing_legal_keeps_its_value_a_number() -> None:
    store = MaskStore(4)
    store.put(np.array([0, 1]), np.array([[False, False], [False, True]]))
    assert store.get(np.array([0, 1])).tolist() == [[1, 1], [0, 1]]  # type: ignore[union-attr]
