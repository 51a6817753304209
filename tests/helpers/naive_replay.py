"""A replay as plain lists of steps, played side by side with the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.data.replay import Replay
from rl_training.data.samplers import PrioritizedSampler, Sampler, UniformSampler

GAMMA = 0.9


@dataclass
class NaiveEpisode:
    """One environment's episode, with everything it showed."""

    env: int
    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    end: str = ""  # "terminated", "truncated" or still running

    def transition(self, start: int, n_step: int) -> tuple[int, float, float, np.ndarray] | None:
        """Return action, n-step reward, discount and successor from one step on, or None while incomplete."""
        last = min(start + n_step, len(self.actions))
        if last - start < n_step and not self.end:
            return None
        reward = sum(GAMMA**power * reward for power, reward in enumerate(self.rewards[start:last]))
        terminal = self.end == "terminated" and last == len(self.actions)
        return self.actions[start], reward, 0.0 if terminal else GAMMA ** (last - start), self.observations[last]


class NaiveWorld:
    """Environments whose every frame is a number of its own, played into a replay and into lists."""

    def __init__(self, *, num_envs: int, n_step: int, stack: int, capacity: int, seed: int, directory=None, per=False):
        self.generator = np.random.default_rng(seed)
        self.num_envs, self.n_step, self.stack = num_envs, n_step, stack
        self.frames = 0
        self.shape = (stack, 2) if stack > 1 else (2,)
        space = gym.spaces.Box(-np.inf, np.inf, self.shape, np.float32)
        sampler: Sampler = PrioritizedSampler(capacity, alpha=1.0, eps=0.1) if per else UniformSampler(capacity)
        self.replay = Replay(
            space,
            np.zeros(num_envs, np.int64),
            sampler,
            capacity=capacity,
            num_envs=num_envs,
            n_step=n_step,
            gamma=GAMMA,
            stack=stack,
            directory=directory,
        )
        self.finished: list[NaiveEpisode] = []
        self.episodes = [NaiveEpisode(env) for env in range(num_envs)]
        for episode in self.episodes:
            self._begin(episode)
        self.replay.begin(np.stack([episode.observations[-1] for episode in self.episodes]))

    def _frame(self, env: int) -> np.ndarray:
        self.frames += 1
        return np.array([self.frames, env], np.float32)

    def _begin(self, episode: NaiveEpisode) -> None:
        frame = self._frame(episode.env)
        episode.observations.append(frame if self.stack == 1 else np.stack([frame] * self.stack))

    def step(self, end_probability: np.ndarray) -> None:
        """Step every environment once."""
        ends = np.where(
            self.generator.random(self.num_envs) < end_probability,
            np.where(self.generator.random(self.num_envs) < 0.5, "terminated", "truncated"),
            "",
        )
        final, shown = [], []
        for env, episode in enumerate(self.episodes):
            frame = self._frame(env)
            before = episode.observations[-1]
            episode.observations.append(frame if self.stack == 1 else np.concatenate((before[1:], frame[None])))
            episode.actions.append(int(self.generator.integers(5)))
            episode.rewards.append(float(self.generator.integers(-4, 5)))
            episode.end = str(ends[env])
            final.append(episode.observations[-1])
        played = list(self.episodes)
        for env, episode in enumerate(played):
            if episode.end:
                self.finished.append(episode)
                self.episodes[env] = NaiveEpisode(env)
                self._begin(self.episodes[env])
            shown.append(self.episodes[env].observations[-1])
        self.replay.add(
            np.array([episode.actions[-1] for episode in played]),
            np.array([episode.rewards[-1] for episode in played], np.float32),
            ends == "terminated",
            ends == "truncated",
            np.stack(final),
            np.stack(shown),
        )

    def expected(self) -> dict[int, tuple[Any, ...]]:
        """Return every complete transition by the newest frame of its observation."""
        found: dict[int, tuple[Any, ...]] = {}
        for episode in [*self.finished, *self.episodes]:
            for start in range(len(episode.actions)):
                transition = episode.transition(start, self.n_step)
                if transition is not None:
                    observation = episode.observations[start]
                    found[int(observation.reshape(-1, 2)[-1, 0])] = (observation, *transition)
        return found

    def check(self, gathered: dict[str, Any], expected: dict[int, tuple[Any, ...]]) -> list[int]:
        """Assert that gathered transitions are the naive ones and return which they are."""
        newest = gathered["observation"].reshape(len(gathered["reward"]), -1, 2)[:, -1, 0].astype(int).tolist()
        naive = [expected[frame] for frame in newest]
        columns = ("observation", "action", "reward", "discount", "next_observation")
        for index, name in enumerate(columns):
            np.testing.assert_allclose(gathered[name], np.array([row[index] for row in naive]), rtol=1e-5, atol=1e-5)
        return newest

    def drawable(self) -> dict[str, Any]:
        """Return every transition that can be drawn."""
        rows = np.arange(self.replay.oldest, self.replay.count) % self.replay.capacity
        return self.replay.gather(rows, self.generator)
