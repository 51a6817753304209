"""Plays rounds of episodes in several environments at once; each round depends on its number alone.

A round that was interrupted is played again from its start and gives the same episodes, whatever came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.data.datasets.episode import ACTION_MASK, LOG_PROB, Episode
from rl_training.data.observations import map_observation
from rl_training.envs.checks import non_finite_row
from rl_training.envs.slot import EnvSlot
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import copy_obs
from rl_training.errors import NonFiniteError
from rl_training.runtime.acting.evaluator import STEP_CAP
from rl_training.runtime.datasets.behaviour import BehaviourPolicy, Draws
from rl_training.runtime.setup.streams import derive_seeds


def episode_seed(seed: int, index: int) -> int:
    """Return the seed of an episode; it never coincides with those of training and evaluation."""
    return derive_seeds(seed, "dataset", "episode", index)[0]


@dataclass
class _Recording:
    """An episode in progress."""

    slot: EnvSlot
    index: int
    seed: int
    observations: list[Any]
    masks: list[np.ndarray | None]
    memory: np.ndarray
    """What the policy remembers of the episode."""
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    log_probs: list[Any] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    def finish(self, observation_space: Space[Any], action_space: Space[Any]) -> Episode:
        """Return the episode as arrays of the types of its spaces."""
        steps = len(self.rewards)
        last = np.arange(1, steps + 1) == steps
        parts = getattr(observation_space, "spaces", None)
        if parts is None:
            observations: Any = np.asarray(np.stack(self.observations), observation_space.dtype)
        else:
            observations = {
                key: np.asarray(np.stack([one[key] for one in self.observations]), part.dtype)
                for key, part in parts.items()
            }
        infos: dict[str, np.ndarray] = {}
        if self.log_probs:
            infos[LOG_PROB] = np.array(self.log_probs, np.float32)
        if any(mask is not None for mask in self.masks):
            every = np.ones(mask_width(action_space), bool)
            infos[ACTION_MASK] = np.stack([every if mask is None else mask for mask in self.masks])
        return Episode(
            observations,
            np.asarray(np.stack(self.actions), action_space.dtype),
            np.array(self.rewards, np.float64),
            last & self.terminated,
            last & self.truncated,
            infos,
            self.seed,
        )


def play_round(
    actor: BehaviourPolicy,
    slots: Sequence[EnvSlot],
    *,
    seed: int,
    number: int,
    first: int,
    wanted: Callable[[int, int], bool],
    on_episode: Callable[[int, Episode], None],
    on_step: Callable[[int], None] = lambda steps: None,
    step_cap: int = STEP_CAP,
) -> None:
    """Play the episodes from the index `first` on; `on_episode` gets them with their indices as they end.

    A new episode begins as long as `wanted(episodes begun, steps taken)` in this round; those begun are played to their
    end.
    """
    draws = Draws.of(seed, number, actor.policy.actor.device)
    begun = taken = 0

    def begin(slot: EnvSlot) -> _Recording:
        nonlocal begun
        index = first + begun
        begun += 1
        own = episode_seed(seed, index)
        observation, mask = slot.reset(own)
        memory = np.zeros(actor.memory_size, np.float32)
        return _Recording(slot, index, own, [copy_obs(observation)], [mask], memory)

    running = [begin(slot) for slot in slots if wanted(begun, taken)]
    while running:
        _act(actor, running, draws)
        taken += len(running)
        on_step(len(running))
        going: list[_Recording] = []
        for episode in running:
            if len(episode.rewards) >= step_cap and not episode.terminated:
                episode.truncated = True
            if not episode.terminated and not episode.truncated:
                going.append(episode)
                continue
            on_episode(episode.index, episode.finish(actor.policy.observation_space, actor.space))
            if wanted(begun, taken):
                going.append(begin(episode.slot))
        running = going


def _act(actor: BehaviourPolicy, running: Sequence[_Recording], draws: Draws) -> None:
    """Take one step in every episode in progress."""
    batch = map_observation(lambda *arrays: np.stack(arrays), *(episode.observations[-1] for episode in running))
    _check_finite(running, batch)
    masks = None
    if any(episode.masks[-1] is not None for episode in running):
        every = np.ones(mask_width(actor.space), bool)
        masks = np.stack([every if episode.masks[-1] is None else episode.masks[-1] for episode in running])
    memory = np.stack([episode.memory for episode in running]) if actor.memory_size else None
    actions, log_probs, after = actor.act(batch, masks, draws, memory)
    for row, episode in enumerate(running):
        if after is not None:
            episode.memory = after[row]
        step = episode.slot.step(actions[row])
        if not np.isfinite(step.reward):
            raise NonFiniteError(str(episode.slot.non_finite("reward")))
        episode.observations.append(copy_obs(step.obs))
        episode.masks.append(step.action_mask)
        episode.actions.append(actions[row])
        episode.rewards.append(step.reward)
        episode.terminated, episode.truncated = bool(step.terminated), bool(step.truncated)
        if log_probs is not None:
            episode.log_probs.append(log_probs[row])
        if episode.terminated or episode.truncated:
            _check_finite([episode], map_observation(lambda array: np.asarray(array)[None], episode.observations[-1]))


def _check_finite(running: Sequence[_Recording], batch: Any) -> None:
    found = non_finite_row(batch)
    if found is not None:
        row, key = found
        place = None if running[row].rewards else "in reset"
        raise NonFiniteError(str(running[row].slot.non_finite(f"observation{key}", place=place)))
