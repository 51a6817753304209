"""A batch of environments with same-step reset: every transition is a real step of one episode."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from rl_training.envs.arrays import all_finite
from rl_training.envs.checks import non_finite_row
from rl_training.envs.slot import EnvSlot
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import Episode, Obs, StepBatch, copy_obs, empty_obs, write_row
from rl_training.errors import CheckpointError

_FLOAT = np.dtype(np.float32)
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


class Final(NamedTuple):
    """The end of an episode in one row of a group."""

    row: int
    obs: Any
    """The true last observation."""
    mask: np.ndarray | None
    """Its action mask, if the environment gave one."""
    terminated: bool
    truncated: bool


class GroupStep(NamedTuple):
    """The results of a group's step, beside the observations and rewards, which are written to given arrays."""

    finals: list[Final]
    masks: list[tuple[int, np.ndarray]]
    """(row, legal actions in its observation) of the rows that have a mask."""
    episodes: list[Episode]
    metrics: list[dict[str, float]]


def reset_slots(
    slots: Sequence[EnvSlot], seeds: Sequence[int], batch: Obs, entering: Callable[[int], None] | None = None
) -> list[tuple[int, np.ndarray]]:
    """Start all slots with their seeds, write the observations to `batch` and return the masks of rows with one."""
    masks: list[tuple[int, np.ndarray]] = []
    for row, (slot, seed) in enumerate(zip(slots, seeds, strict=True)):
        if entering is not None:
            entering(row)
        obs, mask = slot.reset(seed)
        write_row(batch, row, obs)
        if mask is not None:
            masks.append((row, mask))
    _check_rows(slots, batch, None, range(len(slots)))
    return masks


def step_slots(
    slots: Sequence[EnvSlot],
    actions: Sequence[Any],
    batch: Obs,
    rewards: np.ndarray,
    entering: Callable[[int], None] | None = None,
) -> GroupStep:
    """Step all slots and reset those that ended; observations and rewards are written to `batch` and `rewards`.

    `entering(row)` is called before each slot runs. Beside a cheap environment every call and every small array counts:
    there are no flags for the steps at which no episode ends.
    """
    finals: list[Final] = []
    masks: list[tuple[int, np.ndarray]] = []
    episodes: list[Episode] = []
    metrics: list[dict[str, float]] = []
    total = 0.0
    plain = type(batch) is np.ndarray
    for row, slot in enumerate(slots):
        if entering is not None:
            entering(row)
        obs, reward, terminated, truncated, mask, ended_episodes, given = slot.step(actions[row])
        rewards[row] = reward
        total += reward
        if ended_episodes:
            episodes.extend(ended_episodes)
        if given is not None:
            metrics.append(given)
        if terminated or truncated:
            # Copied before the reset: an environment may reuse its buffers.
            final = copy_obs(obs)
            if not all(map(all_finite, (final,) if plain else final.values())):
                raise slot.non_finite("final observation")
            finals.append(Final(row, final, None if mask is None else mask.copy(), terminated, truncated))
            obs, mask = slot.reset()
        if mask is not None:
            masks.append((row, mask))
        if plain:
            batch[row] = obs  # type: ignore[index]
        else:
            write_row(batch, row, obs)
    # Checked here, because a normaliser would spread the NaN of one environment to all.
    if not plain or not all_finite(batch) or not -_LARGEST < total < _LARGEST:  # type: ignore[arg-type]
        _check_rows(slots, batch, rewards, {final.row for final in finals})
    return GroupStep(finals, masks, episodes, metrics)


def _check_rows(slots: Sequence[EnvSlot], batch: Obs, rewards: np.ndarray | None, fresh: Container[int]) -> None:
    """Raise an error for NaN and infinity in the slots' results; the `fresh` rows were just reset."""
    found = non_finite_row(batch)
    if found is not None:
        row, key = found
        raise slots[row].non_finite(f"observation{key}", place="in reset" if row in fresh else None)
    if rewards is not None and not all_finite(rewards):
        row = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise slots[row].non_finite("reward", place="at the last step of an episode" if row in fresh else None)


def fill_masks(array: np.ndarray, masks: Sequence[tuple[int, np.ndarray]]) -> None:
    """Write the masks of the rows that have one, and all legal elsewhere."""
    array[:] = True
    for row, mask in masks:
        array[row] = mask


def with_finals(obs: Obs, finals: Sequence[Final]) -> Obs:
    """Return a copy of `obs` with the true final observations in the rows that ended."""
    final_obs: Obs = copy_obs(obs)
    for final in finals:
        write_row(final_obs, final.row, final.obs)
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
    if type(actions) is np.ndarray and actions.dtype is action_space.dtype:
        return actions.copy()  # type: ignore[return-value]
    return np.array(actions, dtype=action_space.dtype)  # type: ignore[return-value]


class SyncVectorEnv:
    """Steps its slots one after the other in this process."""

    def __init__(self, slots: Sequence[EnvSlot]) -> None:
        self._slots = list(slots)
        self.num_envs = len(self._slots)
        self.observation_space = self._slots[0].observation_space
        self.action_space = self._slots[0].action_space
        self._mask_shape = (self.num_envs, mask_width(self.action_space))
        space = self.observation_space
        self._batch: Any = None  # shape and dtype of a batch of observations; None for a Dict
        if not isinstance(space, gym.spaces.Dict):
            assert space.shape is not None, f"{space} has no array form"
            self._batch = ((self.num_envs, *space.shape), space.dtype)
        # Shared by all steps at which no episode ended.
        self._no_end = np.zeros(self.num_envs, np.bool_)
        self._no_end.setflags(write=False)

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        batch = empty_obs(self.observation_space, self.num_envs)
        masks = reset_slots(self._slots, seeds, batch)
        return batch, self._masks(masks)

    def step(self, actions: np.ndarray) -> StepBatch:
        # New arrays at every step: arrays that were returned are never written again.
        form = self._batch
        obs = final_obs = np.empty(*form) if form is not None else empty_obs(self.observation_space, self.num_envs)
        reward = np.empty(self.num_envs, _FLOAT)
        finals, masks, episodes, metrics = self._step_slots(private_actions(actions, self.action_space), obs, reward)
        terminated = truncated = self._no_end
        mask = final_mask = self._masks(masks) if masks else None
        if finals:
            terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
            for final in finals:
                terminated[final.row], truncated[final.row] = final.terminated, final.truncated
            final_obs = with_finals(obs, finals)
            final_mask = with_final_masks(mask, [(final.row, final.mask) for final in finals], self.num_envs)
        return StepBatch(obs, reward, terminated, truncated, final_obs, mask, episodes, final_mask, metrics)

    def _step_slots(self, actions: Sequence[Any], batch: Obs, rewards: np.ndarray) -> GroupStep:
        return step_slots(self._slots, actions, batch, rewards)

    def _masks(self, masks: Sequence[tuple[int, np.ndarray]]) -> np.ndarray | None:
        if not masks:
            return None
        array = np.empty(self._mask_shape, np.bool_)
        fill_masks(array, masks)
        return array

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


def slot_states(state: dict[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Return the snapshot of every slot; raise an error if their number does not fit."""
    states = state.get("slots")
    if not isinstance(states, list) or len(states) != num_envs:
        found = len(states) if isinstance(states, list) else "no"
        raise CheckpointError(
            f"the checkpoint holds {found} environment snapshots, the run has {num_envs} environments"
        )
    return states
