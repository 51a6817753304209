"""Batches of a replay lie in torch's memory, which the next draw of the same size uses again."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.data.replay import Replay, ReplayBatch
from rl_training.data.samplers import PrioritizedSampler, Sampler, UniformSampler

CPU = torch.device("cpu")
WIDTH = 3


def filled(steps: int = 40, *, sampler: Sampler | None = None, masked_from: int = 1000, **settings: Any) -> Replay:
    """Return a replay of one environment whose step t shows t, acts t, earns t and allows action t % 2."""
    options = {"capacity": 64, "num_envs": 1, "n_step": 1, "gamma": 0.9, **settings}
    space = gym.spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
    replay = Replay(space, np.zeros(1, np.int64), sampler or UniformSampler(64), **options)
    replay.begin(np.zeros((1, WIDTH), np.float32))
    for time in range(steps):
        step(replay, time, masked=time >= masked_from)
    return replay


def step(replay: Replay, time: int, *, masked: bool = False) -> None:
    running = np.zeros(1, bool)
    following = np.full((1, WIDTH), time + 1, np.float32)
    mask = np.arange(2)[None] == (time + 1) % 2 if masked else None
    reward = np.array([time], np.float32)
    replay.add(np.array([time]), reward, running, running, following, following, mask, mask)


def times(batch: ReplayBatch) -> list[float]:
    """Return which steps a batch is made of, having looked at each of its columns."""
    assert isinstance(batch.observation, torch.Tensor)
    assert isinstance(batch.next_observation, torch.Tensor)
    found: list[float] = batch.reward.tolist()
    assert batch.action.tolist() == found
    assert batch.observation.tolist() == [[time] * WIDTH for time in found]
    assert batch.next_observation.tolist() == [[time + 1] * WIDTH for time in found]
    return found


def test_every_batch_of_a_draw_holds_its_own_rows() -> None:
    replay, draws = filled(), np.random.default_rng(0)
    for count in (3, 1, 3, 2):
        batches, rows = replay.sample(8, draws, CPU, count=count)
        assert [times(batch) for batch in batches] == rows.tolist()


def test_a_draw_of_the_same_size_gives_the_same_batches_with_other_rows() -> None:
    replay, draws = filled(), np.random.default_rng(0)
    (first,), _ = replay.sample(8, draws, CPU)
    before = times(first)
    (second,), rows = replay.sample(8, draws, CPU)
    assert second is first
    assert times(second) == rows[0].tolist() != before
    (third,), _ = replay.sample(9, draws, CPU)
    assert third is not first
    assert times(first) == rows[0].tolist()  # another size has memory of its own


def test_rows_that_wrapped_around_the_ring_are_found() -> None:
    replay, draws = filled(steps=200), np.random.default_rng(0)
    (batch,), rows = replay.sample(32, draws, CPU)
    assert sorted(set(times(batch))) == sorted({199 - (199 - row) % 64 for row in rows[0].tolist()})


def test_weights_and_masks_are_part_of_the_memory() -> None:
    replay, draws = filled(sampler=PrioritizedSampler(64, alpha=0.6, eps=1e-6)), np.random.default_rng(0)
    replay.sampler.update(np.arange(40), np.linspace(0.1, 2.0, 40))
    (plain,), _ = replay.sample(8, draws, CPU, beta=0.5)
    assert plain.mask is None
    for time in range(40, 50):  # the first masks of this replay
        step(replay, time, masked=True)
    (masked,), rows = replay.sample(16, draws, CPU, beta=0.5)
    assert masked.weight is not None
    assert masked.weight.max() == 1.0
    assert masked.weight.min() < 1.0
    assert masked.mask is not None
    assert masked.next_mask is not None
    for time, mask, following in zip(rows[0], masked.mask.tolist(), masked.next_mask.tolist(), strict=True):
        assert mask == ([True, True] if time <= 40 else [time % 2 == 0, time % 2 == 1])
        assert following == ([True, True] if time < 40 else [time % 2 == 1, time % 2 == 0])


def test_the_memory_is_torch_s_own() -> None:
    (batch,), _ = filled().sample(8, np.random.default_rng(0), CPU)
    fresh = torch.empty(8, WIDTH)
    for column in (batch.observation, batch.reward, batch.discount, batch.next_observation):
        assert isinstance(column, torch.Tensor)
        assert column.data_ptr() % 64 == fresh.data_ptr() % 64
