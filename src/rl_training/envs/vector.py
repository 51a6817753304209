"""A batch of environments with same-step reset: every transition is a real step of one episode."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from rl_training.envs.checks import all_finite, non_finite_row
from rl_training.envs.slot import EnvSlot
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import Episode, Obs, StepBatch, copy_obs, empty_obs, write_row
from rl_training.errors import CheckpointError

_LARGEST = float(np.finfo(np.float32).max)  # rewards are stored as float32


class VectorEnv(Protocol):
    """The interface of a batch of environments, for every backend."""

    @property
    def num_envs(self) -> int: ...

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of one environment's observation."""

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of one environment's action; `step` takes members of it."""

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        """Start all environments with their seeds; return observations, and action masks if there are any."""

    def step(self, actions: np.ndarray) -> StepBatch:
        """Take one action [num_envs, ...] in every environment and reset those that ended."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return the complete state of the environments; None if they cannot be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state`; the caller has to keep the current observations."""

    def close(self) -> None:
        """Close the environments; may be called twice and after a failure."""


@dataclass
class Rows:
    """Arrays that a group of slots writes its results to, one row per slot."""

    obs: Obs
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    action_mask: np.ndarray | None
    """[rows, n] bool; None for Box actions."""

    @classmethod
    def allocate(cls, observation_space: gym.Space[Any], width: int, rows: int) -> Rows:
        """Return new arrays for `rows` environments whose action masks have a width."""
        return cls(
            obs=empty_obs(observation_space, rows),
            reward=np.empty(rows, dtype=np.float32),
            terminated=np.empty(rows, dtype=np.bool_),
            truncated=np.empty(rows, dtype=np.bool_),
            action_mask=np.empty((rows, width), dtype=np.bool_) if width else None,
        )

    def write_masks(self, masks: Sequence[tuple[int, np.ndarray]]) -> bool:
        """Store the masks of the rows that have one, and all legal elsewhere; return False if there is no mask."""
        if self.action_mask is None or not masks:
            return False
        self.action_mask[:] = True
        for row, mask in masks:
            self.action_mask[row] = mask
        return True


class GroupStep(NamedTuple):
    """The results of a group's step that are not in its rows."""

    finals: list[tuple[int, Any, np.ndarray | None]]
    """(row, true last observation, its action mask if the environment gave one) of the rows that ended."""
    masked: bool
    episodes: list[Episode]
    metrics: list[dict[str, float]]


def reset_slots(
    slots: Sequence[EnvSlot], seeds: Sequence[int], rows: Rows, entering: Callable[[int], None] | None = None
) -> bool:
    """Start all slots with their seeds; return whether any gave an action mask."""
    masks: list[tuple[int, np.ndarray]] = []
    for row, (slot, seed) in enumerate(zip(slots, seeds, strict=True)):
        if entering is not None:
            entering(row)
        obs, mask = slot.reset(seed)
        write_row(rows.obs, row, obs)
        if mask is not None:
            masks.append((row, mask))
    _check_rows(slots, rows, range(len(slots)), rewards=False)
    return rows.write_masks(masks)


def step_slots(
    slots: Sequence[EnvSlot],
    actions: Sequence[Any],
    rows: Rows,
    entering: Callable[[int], None] | None = None,
) -> GroupStep:
    """Step all slots and reset those that ended; `entering(row)` is called before each slot runs."""
    finals: list[tuple[int, Any, np.ndarray | None]] = []
    episodes: list[Episode] = []
    masks: list[tuple[int, np.ndarray]] = []
    metrics: list[dict[str, float]] = []
    # Lists are faster to fill than array elements.
    rewards, terminations, truncations = [], [], []
    batch = rows.obs
    for row, slot in enumerate(slots):
        if entering is not None:
            entering(row)
        obs, reward, terminated, truncated, mask, ended_episodes, given = slot.step(actions[row])
        rewards.append(reward)
        terminations.append(terminated)
        truncations.append(truncated)
        if ended_episodes:
            episodes.extend(ended_episodes)
        if given is not None:
            metrics.append(given)
        if terminated or truncated:
            # Copied before the reset: an environment may reuse its buffers.
            final = copy_obs(obs)
            if not all(map(all_finite, final.values() if isinstance(final, dict) else (final,))):
                raise slot.non_finite("final observation")
            finals.append((row, final, None if mask is None else mask.copy()))
            obs, mask = slot.reset()
        if mask is not None:
            masks.append((row, mask))
        if isinstance(batch, dict):
            write_row(batch, row, obs)
        else:
            batch[row] = obs
    rows.reward[:] = rewards
    rows.terminated[:] = terminations
    rows.truncated[:] = truncations
    # Checked here, because a normaliser would spread the NaN of one environment to all.
    if isinstance(batch, dict) or not all_finite(batch) or not -_LARGEST < sum(rewards) < _LARGEST:
        _check_rows(slots, rows, {row for row, _, _ in finals})
    return GroupStep(finals, rows.write_masks(masks), episodes, metrics)


def _check_rows(slots: Sequence[EnvSlot], rows: Rows, fresh: Container[int], *, rewards: bool = True) -> None:
    """Raise an error for NaN and infinity in the slots' results; the `fresh` rows were just reset."""
    found = non_finite_row(rows.obs)
    if found is not None:
        row, key = found
        raise slots[row].non_finite(f"observation{key}", place="in reset" if row in fresh else None)
    if rewards and not all_finite(rows.reward):
        row = int(np.flatnonzero(~np.isfinite(rows.reward))[0])
        raise slots[row].non_finite("reward", place="at the last step of an episode" if row in fresh else None)


def with_finals(obs: Obs, finals: Sequence[tuple[int, Any, np.ndarray | None]]) -> Obs:
    """Return `obs` itself, or a copy with the true final observations in the rows that ended."""
    if not finals:
        return obs
    final_obs: Obs = copy_obs(obs)
    for row, final, _ in finals:
        write_row(final_obs, row, final)
    return final_obs


def with_final_masks(
    masks: np.ndarray | None, ended: Sequence[tuple[int, np.ndarray | None]], num_envs: int
) -> np.ndarray | None:
    """Return `masks` itself, or a copy with the masks of the true final observations in the rows that ended.

    The mask after a reset does not apply to the episode before it, so a row that ended without a mask gets all legal.
    """
    known = [mask for _, mask in ended if mask is not None]
    if not ended or (masks is None and not known):
        return masks
    final_masks = np.ones((num_envs, len(known[0])), np.bool_) if masks is None else masks.copy()
    for row, mask in ended:
        final_masks[row] = True if mask is None else mask
    return final_masks


def private_actions(actions: np.ndarray, action_space: gym.Space[Any]) -> Sequence[Any]:
    """Return one action per environment, copied so that the caller cannot change it later."""
    if isinstance(action_space, gym.spaces.Discrete):
        return np.asarray(actions).tolist()
    return np.array(actions, dtype=action_space.dtype)  # type: ignore[return-value]


class SyncVectorEnv:
    """Steps its slots one after the other in this process."""

    def __init__(self, slots: Sequence[EnvSlot]) -> None:
        self._slots = list(slots)
        self.num_envs = len(self._slots)
        self.observation_space = self._slots[0].observation_space
        self.action_space = self._slots[0].action_space
        self._mask_width = mask_width(self.action_space)

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        rows = self._rows()
        masked = reset_slots(self._slots, seeds, rows)
        return rows.obs, rows.action_mask if masked else None

    def step(self, actions: np.ndarray) -> StepBatch:
        rows = self._rows()
        finals, masked, episodes, metrics = step_slots(self._slots, private_actions(actions, self.action_space), rows)
        masks = rows.action_mask if masked else None
        return StepBatch(
            rows.obs,
            rows.reward,
            rows.terminated,
            rows.truncated,
            with_finals(rows.obs, finals),
            masks,
            episodes,
            with_final_masks(masks, [(row, mask) for row, _, mask in finals], self.num_envs),
            metrics,
        )

    def state_dict(self) -> dict[str, Any] | None:
        states = [slot.snapshot() for slot in self._slots]
        return None if any(state is None for state in states) else {"slots": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states = slot_states(state, self.num_envs)
        for slot, slot_state in zip(self._slots, states, strict=True):
            slot.restore(slot_state)

    def close(self) -> None:
        for slot in self._slots:
            slot.close()

    def _rows(self) -> Rows:
        # New arrays at every step: arrays that were returned are never written again.
        return Rows.allocate(self.observation_space, self._mask_width, self.num_envs)


def slot_states(state: dict[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Return the snapshot of every slot; raise an error if their number does not fit."""
    states = state.get("slots")
    if not isinstance(states, list) or len(states) != num_envs:
        found = len(states) if isinstance(states, list) else "no"
        raise CheckpointError(
            f"the checkpoint holds {found} environment snapshots, the run has {num_envs} environments"
        )
    return states
