"""How actions are chosen while a dataset is recorded, with the probability of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces

from rl_training.data.observations import NumpyObservation
from rl_training.envs.spaces import mask_width
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.setup.streams import derive_seeds


@dataclass(frozen=True)
class Behaviour:
    """The rule by which actions are chosen."""

    kind: Literal["deterministic", "stochastic", "epsilon", "random"] = "deterministic"
    epsilon: float = 0.0
    """Probability of a random action, for the kind `epsilon`."""

    @property
    def label(self) -> str:
        """A word for names."""
        return f"epsilon{self.epsilon:g}".replace(".", "_") if self.kind == "epsilon" else self.kind

    @property
    def words(self) -> str:
        """A clause for descriptions."""
        return {
            "deterministic": "always the best action",
            "stochastic": "actions sampled from the policy",
            "epsilon": f"the best action, or a random one with probability {self.epsilon:g}",
            "random": "random actions",
        }[self.kind]


class Draws(NamedTuple):
    """The generators of one round: that of the policy, and that of random actions."""

    policy: torch.Generator
    random: np.random.Generator

    @classmethod
    def of(cls, seed: int, number: int, device: torch.device) -> Draws:
        """Return the generators of a round."""
        (own,) = derive_seeds(seed, "dataset", "policy", number)
        return cls(
            torch.Generator(device).manual_seed(own),
            np.random.default_rng(derive_seeds(seed, "dataset", "random", number, count=4)),
        )


class Chosen(NamedTuple):
    """The actions of one step."""

    actions: np.ndarray  # [B, ...] in the environment's format
    log_probs: np.ndarray | None  # [B] if they are known
    memory: np.ndarray | None = None  # [B, size] what the policy remembers after them


class BehaviourPolicy:
    """Chooses actions in the environment's format by a rule."""

    def __init__(self, policy: Policy, behaviour: Behaviour) -> None:
        self.policy = policy
        self.behaviour = behaviour
        self.space = policy.action_space
        self._counted = not isinstance(self.space, spaces.Box)

    @property
    def memory_size(self) -> int:
        """Numbers that the policy remembers from step to step of an episode; 0: nothing, or they do not matter."""
        return 0 if self.behaviour.kind == "random" else self.policy.memory_size

    def act(
        self, observation: NumpyObservation, mask: np.ndarray | None, draws: Draws, memory: np.ndarray | None = None
    ) -> Chosen:
        """Return actions for raw observations [B, ...]; `memory` [B, size] is what the policy remembers, if it does."""
        rows = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        if self.behaviour.kind == "random":
            return Chosen(*self._random(rows, mask, draws))
        sampled = self.behaviour.kind == "stochastic"
        actions, after = self.policy.act(observation, mask, draws.policy if sampled else None, memory)
        if sampled:
            return Chosen(actions, self.policy.log_probs(observation, actions, mask, memory), after)
        if self.behaviour.kind == "epsilon":
            return Chosen(*self._explore(actions, mask, draws), after)
        return Chosen(actions, np.zeros(rows, np.float32) if self._counted else None, after)

    def _random(self, rows: int, mask: np.ndarray | None, draws: Draws) -> tuple[np.ndarray, np.ndarray | None]:
        actions = random_actions(self.space, rows, mask, draws.random)
        return actions, random_log_probs(self.space, rows, mask)

    def _explore(self, best: np.ndarray, mask: np.ndarray | None, draws: Draws) -> tuple[np.ndarray, np.ndarray | None]:
        epsilon = self.behaviour.epsilon
        explores = draws.random.random(len(best)) < epsilon
        other = random_actions(self.space, len(best), mask, draws.random)
        actions = np.where(explores.reshape(-1, *[1] * (best.ndim - 1)), other, best).astype(best.dtype)
        uniform = random_log_probs(self.space, len(best), mask)
        if not self._counted or uniform is None:
            return actions, None  # a mixture of a density and a single point has no density
        is_best = (actions == best).reshape(len(best), -1).all(axis=1)
        with np.errstate(divide="ignore"):
            return actions, np.log(epsilon * np.exp(uniform) + (1.0 - epsilon) * is_best).astype(np.float32)


def random_actions(space: Space[Any], rows: int, mask: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
    """Return uniformly random valid actions [rows, ...] in the environment's format.

    Where a Box has no bound, they are distributed as those of `space.sample()`.
    """
    if isinstance(space, spaces.Box):
        return _random_box(space, rows, generator)
    if isinstance(space, spaces.MultiBinary):
        bits = generator.integers(0, 2, (rows, *space.shape), dtype=np.int8)
        return bits if mask is None else bits * mask.reshape(bits.shape)
    choices = _choices(space)
    score = generator.random((rows, sum(choices)))
    if mask is not None:
        score[~mask] = -1.0
    parts = np.split(score, np.cumsum(choices)[:-1], axis=1)
    chosen = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    if isinstance(space, spaces.Discrete):
        return chosen[:, 0] + space.start
    assert isinstance(space, spaces.MultiDiscrete)
    return (chosen.reshape(rows, *space.nvec.shape) + space.start).astype(space.dtype)


def random_log_probs(space: Space[Any], rows: int, mask: np.ndarray | None) -> np.ndarray | None:
    """Return the log-probabilities [rows] of each of the `random_actions`; None if a Box has no bounds."""
    if isinstance(space, spaces.Box):
        if not space.is_bounded():
            return None
        width = space.high.astype(np.float64) - space.low + (1.0 if space.dtype.kind in "iub" else 0.0)
        return np.full(rows, -np.log(width).sum(), np.float32)
    legal = np.ones((rows, mask_width(space)), bool) if mask is None else mask
    if isinstance(space, spaces.MultiBinary):
        return (-math.log(2) * legal.sum(axis=1)).astype(np.float32)
    parts = np.split(legal, np.cumsum(_choices(space))[:-1], axis=1)
    return -np.sum([np.log(part.sum(axis=1)) for part in parts], axis=0).astype(np.float32)


def _random_box(space: spaces.Box, rows: int, generator: np.random.Generator) -> np.ndarray:
    shape = (rows, *space.shape)
    if space.dtype.kind in "iub":
        low, high = space.low.astype(np.int64), space.high.astype(np.int64)
        return generator.integers(low, high, shape, endpoint=True).astype(space.dtype)
    least, most = space.low.astype(np.float64), space.high.astype(np.float64)
    below, above = np.isfinite(least), np.isfinite(most)
    actions = generator.normal(size=shape)
    uniform, exponential = generator.random(shape), generator.exponential(size=shape)
    actions = np.where(below & ~above, np.where(below, least, 0.0) + exponential, actions)
    actions = np.where(above & ~below, np.where(above, most, 0.0) - exponential, actions)
    width = np.where(below & above, most - least, 0.0)
    actions = np.where(below & above, np.where(below, least, 0.0) + uniform * width, actions)
    return np.clip(actions.astype(space.dtype), space.low, space.high)


def _choices(space: Space[Any]) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    assert isinstance(space, spaces.MultiDiscrete)
    return [int(count) for count in space.nvec.flatten()]
