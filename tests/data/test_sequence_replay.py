"""The replay of sequences against plain lists of episodes: what is learned from, what comes before and after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.samplers import PrioritizedSampler, Sampler, UniformSampler
from rl_training.data.sequence_replay import SequenceBatch, SequenceReplay, memory_bytes

CPU = torch.device("cpu")
GAMMA = 0.9
ACTIONS = 3


@dataclass
class Episode:
    """Everything that an episode showed, and the serial numbers of its steps in the replay."""

    observations: list[float] = field(default_factory=list)
    masks: list[np.ndarray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    memories: list[float] = field(default_factory=list)
    serials: list[int] = field(default_factory=list)
    terminated: bool = False


class World:
    """Environments whose every observation is a number of its own, played into a replay and into lists."""

    def __init__(self, *, num_envs: int, capacity: int, seed: int, per: bool = False, stack: int = 1, **kwargs: Any):
        self.generator = np.random.default_rng(seed)
        self.num_envs, self.stack = num_envs, stack
        self.settings: dict[str, Any] = {"sequence_length": 4, "burn_in": 3, "n_step": 2, **kwargs}
        sampler: Sampler = PrioritizedSampler(capacity, alpha=1.0, eps=0.1) if per else UniformSampler(capacity)
        self.replay = SequenceReplay(
            gym.spaces.Box(-np.inf, np.inf, (stack, 1) if stack > 1 else (1,), np.float32),
            np.zeros(num_envs, np.int64),
            sampler,
            memory_size=2,
            capacity=capacity,
            num_envs=num_envs,
            gamma=GAMMA,
            stack=stack,
            **self.settings,
        )
        self.shown, self.taken = 0, 0
        self.places: dict[float, tuple[Episode, int]] = {}  # of an observation
        self.begin()

    def begin(self) -> None:
        """Begin new episodes everywhere, in the middle of the old ones."""
        self.running = [Episode() for _ in range(self.num_envs)]
        observation, mask = self._show(range(self.num_envs))
        self.replay.begin(observation, mask)

    def _show(self, envs: Any) -> tuple[np.ndarray, np.ndarray]:
        masks = self.generator.random((self.num_envs, ACTIONS)) < 0.7
        masks[:, 0] = True
        observation = np.zeros(self.num_envs, np.float32)
        for env in envs:
            self.shown += 1
            episode = self.running[env]
            self.places[float(self.shown)] = (episode, len(episode.observations))
            episode.observations.append(float(self.shown))
            episode.masks.append(masks[env])
            observation[env] = self.shown
        return self._framed(observation), masks

    def _framed(self, newest: np.ndarray) -> np.ndarray:
        """Return observations of which only the newest frame matters: the replay stores each frame once."""
        return newest[:, None] if self.stack == 1 else np.repeat(newest[:, None, None], self.stack, axis=1)

    def step(self, end_probability: float) -> None:
        """Take a step in every environment; episodes end with a probability, one way or the other."""
        ended = self.generator.random(self.num_envs) < end_probability
        terminated = ended & (self.generator.random(self.num_envs) < 0.5)
        action = self.generator.integers(ACTIONS, size=self.num_envs)
        reward = self.generator.normal(size=self.num_envs).astype(np.float32)
        memory = self.generator.normal(size=(self.num_envs, 2)).astype(np.float32)
        for env, episode in enumerate(self.running):
            episode.actions.append(int(action[env]))
            episode.rewards.append(float(reward[env]))
            episode.memories.append(float(memory[env, 0]))
            episode.serials.append(self.taken * self.num_envs + env)
            episode.terminated = bool(terminated[env])
        self.taken += 1
        final, final_mask = self._show(range(self.num_envs))
        observation, mask = final, final_mask
        if ended.any():
            over = np.flatnonzero(ended)
            for ended_env in over:
                self.running[ended_env] = Episode()
            first, first_mask = self._show(over)
            picked = ended.reshape(-1, *(1,) * (final.ndim - 1))
            observation, mask = np.where(picked, first, final), np.where(ended[:, None], first_mask, final_mask)
        self.replay.add(action, reward, terminated, ended & ~terminated, final, observation, final_mask, mask, memory)

    def check(self, batch: SequenceBatch) -> None:
        """Compare a batch with the lists."""
        lengths, earlier = batch.lengths.tolist(), batch.earlier_lengths.tolist()
        rows = torch.split(self._numbers(batch.observation), lengths)
        before = torch.split(self._numbers(batch.earlier), earlier)
        firsts = np.cumsum([0, *lengths[:-1]])
        for number, (observed, burnt) in enumerate(zip(rows, before, strict=True)):
            mine = batch.sequence == number
            learned = batch.row[mine] - firsts[number]
            assert learned.tolist() == list(range(len(learned)))  # the first rows of a sequence, in order
            episode, start = self.places[float(observed[0])]
            self._check_extent(episode, start, len(learned), len(burnt))
            assert observed.tolist() == episode.observations[start : start + len(observed)]
            assert burnt.tolist() == episode.observations[start - len(burnt) : start]
            assert float(batch.memory[number, 0]) == episode.memories[start - len(burnt)]
            for step, place in enumerate(np.flatnonzero(mine.numpy()).tolist()):
                self._check_step(
                    batch, place, episode, start + step, int(batch.next_row[place]) - firsts[number] + start
                )

    def _check_extent(self, episode: Episode, start: int, learned: int, burnt: int) -> None:
        """Compare where a sequence begins and ends, and how many steps before it are burnt in."""
        length, oldest = self.settings["sequence_length"], self.replay.oldest
        kept = [step for step, serial in enumerate(episode.serials) if serial >= oldest]
        assert start == max(start // length * length, kept[0])
        assert learned == min(length - start % length, len(episode.actions) - start)
        assert burnt == min(self.settings["burn_in"], start - kept[0])

    def _check_step(self, batch: SequenceBatch, place: int, episode: Episode, step: int, bootstrap: int) -> None:
        """Compare a step's action and its n-step return."""
        last = min(step + self.settings["n_step"], len(episode.actions))
        total = sum(GAMMA**power * reward for power, reward in enumerate(episode.rewards[step:last]))
        over = episode.terminated and last == len(episode.actions)
        assert int(batch.action[place]) == episode.actions[step]
        assert float(batch.reward[place]) == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert float(batch.discount[place]) == pytest.approx(0.0 if over else GAMMA ** (last - step))
        assert bootstrap == last
        assert batch.next_mask is not None
        assert batch.next_mask[place].tolist() == episode.masks[last].tolist()

    def _numbers(self, observation: Any) -> torch.Tensor:
        return observation[:, 0] if self.stack == 1 else observation[:, -1, 0]


@settings(max_examples=25, deadline=None)
@given(
    num_envs=st.integers(1, 4),
    n_step=st.integers(1, 6),
    sequence_length=st.integers(1, 40),
    burn_in=st.integers(0, 9),
    capacity=st.integers(8, 90),
    seed=st.integers(0, 2**32),
    end_probability=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    per=st.booleans(),
    stack=st.sampled_from([1, 1, 2]),
)
def test_every_sequence_is_a_part_of_one_episode_with_its_memory_and_returns(
    num_envs, n_step, sequence_length, burn_in, capacity, seed, end_probability, per, stack
):
    world = World(
        num_envs=num_envs,
        n_step=n_step,
        sequence_length=sequence_length,
        burn_in=burn_in,
        capacity=capacity,
        seed=seed,
        per=per,
        stack=stack,
    )
    for time in range(60):
        if time == 33:
            world.begin()
        world.step(end_probability)
        if time % 7 == 3:
            batches, rows = world.replay.sample(5, world.generator, CPU, count=2, beta=0.5)
            for batch, stored in zip(batches, rows, strict=True):
                world.check(batch)
                np.testing.assert_array_equal(world.replay.columns["action"][stored], batch.action.numpy())
                if per:
                    world.replay.sampler.update(stored, world.generator.random(len(stored)))


def test_sequences_are_drawn_in_proportion_to_their_lengths():
    world = World(num_envs=1, capacity=50, seed=0, sequence_length=4, burn_in=0, n_step=1)
    for _ in range(10):  # sequences of 4, 4 and 2 steps
        world.step(0.0)
    (batch,), _ = world.replay.sample(20_000, world.generator, CPU)
    lengths = torch.bincount(batch.sequence)
    assert (lengths == 2).float().mean() == pytest.approx(0.2, abs=0.01)
    assert set(lengths.tolist()) == {2, 4}


def test_with_priorities_the_weighted_draws_are_those_of_uniform_ones():
    world = World(num_envs=1, capacity=16, seed=0, sequence_length=4, burn_in=0, n_step=1, per=True)
    for _ in range(16):
        world.step(0.0)
    errors = np.repeat([0.1, 0.5, 1.0, 4.0], 4)
    world.replay.sampler.update(np.arange(16), errors)
    (batch,), rows = world.replay.sample(40_000, world.generator, CPU, beta=1.0)
    sequence = rows[0][np.cumsum(np.bincount(batch.sequence.numpy())) - 1] // 4  # [S] which of the four
    drawn = np.bincount(sequence, minlength=4) / len(sequence)
    np.testing.assert_allclose(drawn, (errors[::4] + 0.1) / (errors[::4] + 0.1).sum(), atol=0.01)
    weighted = np.bincount(sequence, batch.weight.numpy(), minlength=4)
    np.testing.assert_allclose(weighted / weighted.sum(), np.full(4, 0.25), atol=0.02)
    assert float(batch.weight.max()) == 1.0


@pytest.mark.parametrize("per", [False, True])
def test_a_restored_replay_goes_on_with_the_same_sequences(per):
    worlds = [World(num_envs=3, capacity=40, seed=5, per=per) for _ in range(2)]
    world = worlds[0]
    for _ in range(25):
        world.step(0.1)
    fresh = worlds[1].replay
    for ranges in world.replay.ranges_since((0, 0)):
        fresh.restore_rows(ranges, world.replay.rows(ranges))
    fresh.load_state_dict(world.replay.state_dict())
    for replay in (fresh, world.replay):  # the episodes in progress go on
        three = np.zeros(3, np.float32)
        no = np.zeros(3, bool)
        shown = np.full((3, 1), 7.0, np.float32)
        replay.add(np.zeros(3, np.int64), three, no, no, shown, shown, memory=np.zeros((3, 2), np.float32))
    for name, column in world.replay.columns.items():
        np.testing.assert_array_equal(fresh.columns[name][:40], column[:40])
    draws = [replay.sample(8, np.random.default_rng(1), CPU)[0][0] for replay in (fresh, world.replay)]
    for one, other in zip(*draws, strict=True):
        assert torch.equal(one, other)


def test_the_bytes_of_a_memory_are_those_of_its_columns():
    world = World(num_envs=1, capacity=10, seed=0)
    columns = world.replay.columns
    assert memory_bytes(2) == (columns["place"].nbytes + columns["memory"].nbytes) // 10
