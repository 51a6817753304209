"""A replay: steps go in, batches of transitions come out; accumulation, storage and sampling are separate parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from rl_training.data.accumulator import NStepAccumulator, StackTracker, Transitions
from rl_training.data.batches import BatchMemory
from rl_training.data.batches import ReplayBatch as ReplayBatch
from rl_training.data.mask_store import MaskStore
from rl_training.data.observation_store import ObservationStore, allocate_column, ring_places
from rl_training.data.observations import NumpyObservation, map_observation
from rl_training.data.samplers import Sampler
from rl_training.envs.normalize import Normalizers

SAVED_PARTS = 32  # number of files for a full replay, so that saving copies little memory at a time
SMALLEST_PART = 1 << 20  # bytes; smaller parts are not worth a file
_OBSERVATION, _MASK = "observation/", "mask/"  # prefixes of saved columns
_PLAIN = ("action", "reward", "discount")  # columns that hold what a batch has of them
_REFERRED = (("observation", "observation", "mask"), ("next_observation", "successor", "next_mask"))
OBSERVATION_SLACK = 8  # one more observation per this many transitions: an ended episode stores an extra one


class Replay:
    """The latest transitions of all environments, each observation stored once.

    Stored data is raw; sampled data is scaled by the normalisers' current statistics.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action: np.ndarray,
        sampler: Sampler,
        *,
        capacity: int,
        num_envs: int,
        n_step: int,
        gamma: float,
        stack: int = 1,
        directory: Path | None = None,
        normalizers: Normalizers | None = None,
    ) -> None:
        """Allocate memory for `capacity` transitions; `action` is an example of one step, [num_envs, ...]."""
        self.normalizers = normalizers or Normalizers()
        self.capacity = capacity
        self.num_envs = num_envs
        self.count = 0  # transitions ever added
        self.oldest = 0  # serial number of the oldest transition that can be sampled
        self.sampler = sampler
        # The observations of transitions stored at the same time may be this far apart.
        self._spread = 2 * (n_step + stack + 1) * num_envs
        stored = capacity + capacity // OBSERVATION_SLACK + 2 * self._spread
        self.observations = ObservationStore(
            observation_space,
            stored,
            stack=stack,
            directory=directory,
            keep_double=self.normalizers.observation is not None,
        )
        self.masks = MaskStore(stored, directory=directory)
        # Rewards are scaled and clipped one by one, by the statistics at sampling time, so they are stored separately.
        summed = n_step == 1 or self.normalizers.reward is None
        self.accumulator = NStepAccumulator(num_envs, n_step, gamma, summed=summed)
        self.stacks = StackTracker(num_envs, stack)
        serial_shape = (capacity, stack) if stack > 1 else (capacity,)
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "observation": (serial_shape, np.int64),
            "successor": (serial_shape, np.int64),
            "action": ((capacity, *action.shape[1:]), action.dtype),
            "reward": ((capacity,) if summed else (capacity, n_step), np.float32),
            "discount": ((capacity,), np.float32),
            "env": ((capacity,), np.int32),
        }
        self._memory: BatchMemory | None = None
        self._memory_key: Any = None
        self.columns = {name: allocate_column(shape, dtype, directory, name) for name, (shape, dtype) in shapes.items()}

    @property
    def size(self) -> int:
        """Number of transitions that can be sampled."""
        return self.count - self.oldest

    def begin(self, observation: NumpyObservation, mask: np.ndarray | None = None) -> None:
        """Begin episodes in all environments with these observations [num_envs, ...] and action masks."""
        flushed = self.accumulator.flush(self.stacks.serials)
        if flushed is not None:
            self._store(flushed)
        self.stacks.restart(np.arange(self.num_envs), self._put(observation, mask))

    def add(
        self,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final_observation: NumpyObservation,
        observation: NumpyObservation,
        final_mask: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> None:
        """Add one step of every environment: its true successor, and, after any reset, the observation to act on."""
        current = self.stacks.serials
        successor = self.stacks.successor(self._put(final_observation, final_mask))
        self._store(self.accumulator.add(current, action, reward, terminated, truncated, successor))
        self.stacks.serials = successor.copy()
        if final_observation is not observation:  # an episode ended
            ended = np.flatnonzero(terminated | truncated)
            first = map_observation(lambda array: array[ended], observation)
            self.stacks.restart(ended, self._put(first, None if mask is None else mask[ended]))

    def _put(self, observation: NumpyObservation, mask: np.ndarray | None) -> np.ndarray:
        serials = self.observations.put(observation)
        self.masks.put(serials, mask)
        return serials

    def _store(self, new: Transitions) -> None:
        added = len(new.reward)
        if added:
            places = ring_places(self.count, added, self.capacity)
            for name, column in zip(Transitions._fields, new, strict=True):
                self.columns[name][places] = column
            self.sampler.added(self.count, added)
            self.count += added
        self._forget()

    def _forget(self) -> None:
        """Drop transitions that were overwritten, or whose observations soon will be."""
        oldest = max(self.oldest, self.count - self.capacity)
        needed = self.observations.count - self.observations.capacity + self._spread
        if needed <= 0:  # no observation was ever overwritten
            self.oldest = oldest
            return
        while oldest < self.count and self.columns["observation"][oldest % self.capacity].min() < needed:
            self.sampler.removed(np.array([oldest % self.capacity]))
            oldest += 1
        self.oldest = oldest

    def sample(
        self,
        batch_size: int,
        generator: np.random.Generator,
        device: torch.device,
        *,
        count: int = 1,
        beta: float = 1.0,
    ) -> tuple[list[ReplayBatch], np.ndarray]:
        """Sample `count` batches with one transfer; return them and their rows [count, batch_size].

        On the CPU they are valid until the next call, which uses the same memory.
        """
        rows, weight = self.sampler.sample(self.oldest, self.count, (count, batch_size), beta, generator)
        memory = self._memory_for((count, batch_size), weighted=weight is not None)
        gathered = self._scaled(self.gather(rows, generator, memory))
        gathered["weight"] = None
        if weight is not None:
            gathered["weight"] = memory.arrays["weight"]
            gathered["weight"][:] = weight
        return memory.batches(gathered, device), rows

    def _memory_for(self, leading: tuple[int, int], *, weighted: bool) -> BatchMemory:
        """Return memory for batches of a size."""
        masked = self.masks.width
        if self._memory is None or self._memory_key != (leading, weighted, masked):
            observation, mask = self.observations.form, ((masked,), np.dtype(np.bool_))
            columns = {name: (self.columns[name].shape[1:], self.columns[name].dtype) for name in _PLAIN}
            columns |= {"observation": observation, "next_observation": observation}
            columns |= {"weight": ((), np.dtype(np.float32))} if weighted else {}
            columns |= {"mask": mask, "next_mask": mask} if masked else {}
            self._memory, self._memory_key = BatchMemory(leading, columns), (leading, weighted, masked)
        return self._memory

    def _scaled(self, gathered: dict[str, Any]) -> dict[str, Any]:
        """Scale gathered transitions by the current statistics."""
        if self.normalizers.observation is not None:
            for name in ("observation", "next_observation"):
                gathered[name] = self.normalizers.observation(gathered[name])
        if self.normalizers.reward is not None:
            gathered["reward"] = self.accumulator.total(self.normalizers.reward(gathered["reward"]))
        return gathered

    def gather(
        self, rows: np.ndarray, generator: np.random.Generator, memory: BatchMemory | None = None
    ) -> dict[str, Any]:
        """Return the transitions in rows [...] as unscaled host arrays, in `memory` if it is given."""
        into: Mapping[str, Any] = {} if memory is None else memory.arrays
        gathered: dict[str, Any] = {}
        for name, column, mask in _REFERRED:
            serials = self.columns[column].take(rows, axis=0)
            gathered[name] = self.observations.get(serials, into.get(name))
            gathered[mask] = self._masks_of(serials, into.get(mask))
        for name in _PLAIN:  # with another mode NumPy would write to a copy first; rows outside were refused above
            gathered[name] = self.columns[name].take(rows, axis=0, out=into.get(name), mode="clip")
        return gathered

    def _masks_of(self, serials: np.ndarray, into: np.ndarray | None = None) -> np.ndarray | None:
        """Return the masks of observations by their serial numbers; a stack of frames has that of its newest."""
        return self.masks.get(serials if self.stacks.stack == 1 else serials[..., -1], into)

    def marks(self) -> tuple[int, int]:
        """Return the serial numbers up to which transitions and observations are stored."""
        return self.count, self.observations.count

    def ranges_since(self, marks: tuple[int, int]) -> list[dict[str, list[int]]]:
        """Return the ranges of serial numbers added since earlier `marks`, in parts that are small to copy."""
        first = max(marks[0], self.count - self.capacity)
        first_observation = max(marks[1], self.observations.oldest)
        new, new_observations = self.count - first, self.observations.count - first_observation
        width = sum(column.nbytes for column in self.columns.values()) // self.capacity
        observation_width = self.observations.width + self.masks.width
        total, added = (
            width * transitions + observation_width * observations
            for transitions, observations in ((self.capacity, self.observations.capacity), (new, new_observations))
        )
        limit = max(total // SAVED_PARTS, SMALLEST_PART)
        parts = min(new_observations, math.ceil(added / limit))  # each part has at least one observation
        return [
            {
                "transitions": [first + new * part // parts, first + new * (part + 1) // parts],
                "observations": [
                    first_observation + new_observations * part // parts,
                    first_observation + new_observations * (part + 1) // parts,
                ],
            }
            for part in range(parts)
        ]

    def rows(self, ranges: Mapping[str, list[int]]) -> dict[str, np.ndarray]:
        """Return copies of the columns in ranges of serial numbers, for saving."""
        rows = np.arange(*ranges["transitions"]) % self.capacity
        arrays = {f"transition/{name}": column[rows] for name, column in self.columns.items()}
        observations = self.observations.rows(*ranges["observations"])
        masks = self.masks.rows(*ranges["observations"])
        arrays |= {f"{_OBSERVATION}{name}": column for name, column in observations.items()}
        return arrays | {f"{_MASK}{name}": column for name, column in masks.items()}

    def needs(self, ranges: Mapping[str, list[int]]) -> bool:
        """Return whether rows of these ranges may still be sampled."""
        transitions_end, observations_end = ranges["transitions"][1], ranges["observations"][1]
        return transitions_end > self.count - self.capacity or observations_end > self.observations.oldest

    def restore_rows(self, ranges: Mapping[str, list[int]], arrays: Mapping[str, np.ndarray]) -> None:
        """Restore saved columns at their places."""
        rows = np.arange(*ranges["transitions"]) % self.capacity
        for name, column in self.columns.items():
            column[rows] = arrays[f"transition/{name}"]
        first = ranges["observations"][0]
        self.observations.restore_rows(first, _below(_OBSERVATION, arrays))
        self.masks.restore_rows(first, _below(_MASK, arrays))

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the rows; rows are saved incrementally (`ranges_since`)."""
        return {
            "count": self.count,
            "oldest": self.oldest,
            "observation_count": self.observations.count,
            "stacks": self.stacks.serials,
            "accumulator": self.accumulator.state_dict(),
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; `restore_rows` restores the rows."""
        count, oldest = state["count"], state["oldest"]
        if not 0 <= oldest <= count <= oldest + self.capacity or (oldest == count > 0):
            raise ValueError(f"a replay of {self.capacity} rows cannot hold the rows from {oldest} to {count}")
        held = state["accumulator"]["action"]
        if held is not None and held.shape[2:] != self.columns["action"].shape[1:]:
            raise ValueError(f"the actions held back have the shape {held.shape[2:]}")
        self.count, self.oldest = count, oldest
        self.observations.count = state["observation_count"]
        self.stacks.serials = state["stacks"]
        self.accumulator.load_state_dict(state["accumulator"])
        self.sampler.load_state_dict(state["sampler"])


def _below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the saved columns whose names begin with a prefix, without it."""
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
