"""A replay of single steps with the memory that acting had at each, which gives sequences of steps to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.data.observation_store import allocate_column
from rl_training.data.observations import NumpyObservation, Observation, array_to_tensor, to_tensor
from rl_training.data.replay import Replay
from rl_training.data.samplers import Sampler

PLACE = np.dtype(np.int32)


class SequenceBatch(NamedTuple):
    """S sequences of steps, each within an episode: T steps to learn from, between those before and after them.

    Rows of one kind lie sequence after sequence, in the order of time.
    """

    memory: Tensor  # [S, memory size] that acting had before the first row of each sequence
    earlier: Observation  # [E, ...] observations before the steps to learn from: the burn-in
    earlier_lengths: Tensor  # [S] how many of them each sequence has, 0 at the start of an episode
    observation: Observation  # [R, ...] of the steps to learn from, and of the steps after them that targets need
    lengths: Tensor  # [S] how many of them each sequence has, at least 2
    row: Tensor  # [T] which of these rows a step is
    next_row: Tensor  # [T] and which one its target bootstraps from
    action: Tensor  # [T]
    reward: Tensor  # [T] n-step
    discount: Tensor  # [T] factor of the value of `next_row`
    next_mask: Tensor | None  # [T, actions] legal actions in `next_row`; None if none is ever illegal
    sequence: Tensor  # [T] the sequence of a step
    weight: Tensor  # [S] importance weights, 1 if steps are drawn uniformly


class Windows(NamedTuple):
    """Where S sequences lie in the replay, as serial numbers of steps `num_envs` apart."""

    start: np.ndarray  # [S] serial number of the first step to learn from
    earlier: np.ndarray  # [S] steps before it that are burnt in
    learned: np.ndarray  # [S] steps to learn from
    steps: np.ndarray  # [S] these and the steps after them that targets need


class SequenceReplay(Replay):
    """The latest steps of all environments, with the memories of their time.

    Episodes are divided into sequences of `sequence_length` steps from their beginning on, so that a step belongs to
    one sequence. A step is drawn, and its whole sequence learned from: a sequence is drawn in proportion to its length.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action: np.ndarray,
        sampler: Sampler,
        *,
        memory_size: int,
        sequence_length: int,
        burn_in: int,
        n_step: int,
        gamma: float,
        num_envs: int,
        **settings: Any,
    ) -> None:
        """`n_step` rewards are summed when sequences are sampled; single steps are stored."""
        super().__init__(observation_space, action, sampler, gamma=gamma, num_envs=num_envs, n_step=1, **settings)
        self.sequence_length, self.burn_in, self.n_step = sequence_length, burn_in, n_step
        self._powers = gamma ** np.arange(n_step + 1)
        # Single steps are stored in the order of the environments: serial numbers within an episode are num_envs apart.
        directory = settings.get("directory")
        for name, (shape, kind) in memory_columns(memory_size).items():
            self.columns[name] = allocate_column((self.capacity, *shape), kind, directory, name)
        self._place = np.zeros(num_envs, PLACE)  # steps since the beginning of the episodes in progress

    def begin(self, observation: NumpyObservation, mask: np.ndarray | None = None) -> None:
        """Begin new episodes in all environments; those in progress end here."""
        super().begin(observation, mask)
        self._place = np.zeros(self.num_envs, PLACE)

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
        memory: np.ndarray | None = None,
    ) -> None:
        """Add one step of every environment, with the memories [num_envs, memory size] that it was taken with."""
        super().add(action, reward, terminated, truncated, final_observation, observation, final_mask, mask)
        rows = np.arange(self.count - self.num_envs, self.count) % self.capacity
        self.columns["place"][rows], self.columns["memory"][rows] = self._place, memory
        self._place = np.where(terminated | truncated, 0, self._place + 1).astype(PLACE)

    def sample(  # type: ignore[override]
        self,
        batch_size: int,
        generator: np.random.Generator,
        device: torch.device,
        *,
        count: int = 1,
        beta: float = 1.0,
    ) -> tuple[list[SequenceBatch], list[np.ndarray]]:
        """Sample `count` batches of `batch_size` sequences; return them and the rows [T] of each one's steps."""
        drawn, _ = self.sampler.sample(self.oldest, self.count, (count, batch_size), beta, generator)
        windows = [self.windows(rows) for rows in drawn]
        batches = [self._batch(window, device, beta) for window in windows]
        return batches, [self._rows(window, *_spread(window.learned)) for window in windows]

    def windows(self, rows: np.ndarray) -> Windows:
        """Return the sequences [S] of which the steps in rows [S] are part."""
        envs, newest = self.num_envs, self.count - 1
        serial = newest - (newest - rows) % self.capacity
        start = serial - self.columns["place"][rows] % self.sequence_length * envs
        # A sequence whose beginning was overwritten begins with its oldest step that can be sampled.
        start = np.maximum(start, self.oldest + (start - self.oldest) % envs)
        place = self.columns["place"][start % self.capacity]
        ahead = np.arange(self.sequence_length + self.n_step - 1)
        serials = start[:, None] + ahead * envs  # [S, steps]
        same = self.columns["place"].take(serials % self.capacity) == place[:, None] + ahead
        going_on = np.logical_and.accumulate(same & (serials < self.count), axis=1).sum(axis=1)
        learned = np.minimum(going_on, self.sequence_length - place % self.sequence_length)
        return Windows(
            start=start,
            earlier=np.clip(np.minimum(place, (start - self.oldest) // envs), 0, self.burn_in),
            learned=learned,
            steps=np.minimum(going_on, learned + self.n_step - 1),
        )

    def _rows(self, windows: Windows, sequence: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the rows [...] of steps [...] of sequences [...], counted from the first step to learn from."""
        return (windows.start[sequence] + step * self.num_envs) % self.capacity

    def _batch(self, windows: Windows, device: torch.device, beta: float) -> SequenceBatch:
        sequence, step = _spread(windows.learned)
        rows = self._rows(windows, sequence, step)
        before, number = _spread(windows.earlier)
        earlier = self._rows(windows, before, number - windows.earlier[before])
        serials = self._observation_serials(windows)
        reward, discount, taken = self._returns(windows, sequence, step)
        row = (np.cumsum(windows.steps + 1) - (windows.steps + 1))[sequence] + step
        mask = self._masks_of(serials[row + taken])
        weight = self.sampler.weigh(rows, sequence, self.size, beta)
        first = (windows.start - windows.earlier * self.num_envs) % self.capacity
        arrays = {
            "memory": self.columns["memory"][first],
            "earlier_lengths": windows.earlier.astype(np.int64),
            "lengths": windows.steps + 1,
            "row": row,
            "next_row": row + taken,
            "action": self.columns["action"][rows],
            "reward": reward,
            "discount": discount,
            "sequence": sequence,
            "weight": np.ones(len(first), np.float32) if weight is None else weight,
        }
        return SequenceBatch(
            earlier=self._observed(self.columns["observation"][earlier], device),
            observation=self._observed(serials, device),
            next_mask=None if mask is None else array_to_tensor(mask, device),
            **{name: array_to_tensor(array, device) for name, array in arrays.items()},
        )

    def _observation_serials(self, windows: Windows) -> np.ndarray:
        """Return the observations [R] of all steps of sequences, each time with the one that the last step led to."""
        sequence, step = _spread(windows.steps + 1)
        last = step == windows.steps[sequence]
        rows = self._rows(windows, sequence, step - last)
        serials = self.columns["observation"][rows]
        serials[last] = self.columns["successor"][rows[last]]
        return serials

    def _observed(self, serials: np.ndarray, device: torch.device) -> Observation:
        """Return observations [n, ...], scaled by the current statistics."""
        return to_tensor(self.normalizers.scale_observation(self.observations.get(serials)), device)

    def _returns(self, windows: Windows, sequence: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the sums of up to n rewards [T], the factors of the values after them, and the number of rewards.

        A sum ends with its episode, and with the newest step that is stored.
        """
        taken = np.minimum(self.n_step, windows.steps[sequence] - step)
        total = np.zeros(len(step))
        for number in range(self.n_step):
            summed = number < taken
            rows = self._rows(windows, sequence[summed], step[summed] + number)
            total[summed] += self._powers[number] * self.normalizers.scale_reward(self.columns["reward"][rows])
        final = self._rows(windows, sequence, step + taken - 1)
        discount = np.where(self.columns["discount"][final] == 0.0, 0.0, self._powers[taken])
        return total.astype(np.float32), discount.astype(np.float32), taken

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the rows."""
        return {**super().state_dict(), "place": self._place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; `restore_rows` restores the rows."""
        super().load_state_dict(state)
        self._place = state["place"]


def memory_columns(memory_size: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return shape and type of the columns in addition to those of a plain replay."""
    return {"place": ((), PLACE), "memory": ((memory_size,), np.float32)}


def memory_bytes(memory_size: int) -> int:
    """Return the bytes per step in addition to those of a plain replay."""
    return PLACE.itemsize + np.dtype(np.float32).itemsize * memory_size


def _spread(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequence and the number within it of every row of sequences with these lengths, one after another."""
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    return sequence, np.arange(len(sequence)) - (np.cumsum(lengths) - lengths)[sequence]
