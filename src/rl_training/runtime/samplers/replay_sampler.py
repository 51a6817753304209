"""The sampler process of a run with a replay: it takes some steps of its environments and returns the transitions."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.data.observations import NumpyObservation, map_observation
from rl_training.data.rollout import RolloutStorage
from rl_training.envs.normalize import Normalizers
from rl_training.envs.step import StepBatch, StepEvents
from rl_training.envs.vector import Final
from rl_training.runtime.collector import ReplayCollector, StepCount
from rl_training.runtime.samplers.own_rows import OwnActions, check_rows_alone, convolve_own_rows
from rl_training.runtime.samplers.sampler import (
    CPU,
    Collected,
    GroupSampler,
    GroupState,
    GroupSteps,
    Order,
    SamplerSetup,
)
from rl_training.runtime.samplers.shared_memory import packed, stream_state, unpacked


class PlannedStep(NamedTuple):
    """How samplers take one step of all environments."""

    controls: Mapping[str, float]
    random: bool
    """Whether actions are random."""


@dataclass(frozen=True)
class RoundOrder(Order):
    """The steps to take before the next exchange."""

    steps: tuple[PlannedStep, ...]

    @property
    def length(self) -> int:
        """Steps of the shared rollout that are filled."""
        return len(self.steps)


@dataclass(frozen=True)
class CollectedRound(Collected):
    """What a sampler returns of some steps beside the columns that it has written to shared memory."""

    shows_mask: list[bool]
    """[steps] whether the observations before a step had action masks."""
    ends: list[tuple[int, Final]]
    """The steps at which episodes ended, and their ends; environments are numbered as the run does."""


class RoundRecorder:
    """Stands for a replay in a sampler: it writes steps to shared memory."""

    def __init__(self, normalizers: Normalizers, first: int) -> None:
        """`first` is the number of the first environment."""
        self.normalizers = normalizers
        self.shows_mask: list[bool] = []
        self.ends: list[tuple[int, Final]] = []
        self._first = first
        self._storage: RolloutStorage
        self._shown: tuple[NumpyObservation, np.ndarray | None]

    def start(self, storage: RolloutStorage) -> None:
        """Write the following steps to `storage`, from its beginning on."""
        storage.clear()
        self._storage, self.shows_mask, self.ends = storage, [], []

    def begin(self, observation: NumpyObservation, mask: np.ndarray | None = None) -> None:
        """Go on from these observations and action masks."""
        self._shown = observation, mask

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
        **stored: Any,
    ) -> None:
        """Write one step of every environment."""
        step, (shown, shown_mask) = self._storage.position, self._shown
        self._storage.add(shown, action, shown_mask, reward, terminated, truncated, **stored)
        self.shows_mask.append(shown_mask is not None)
        for row in np.flatnonzero(terminated | truncated) if final_observation is not observation else ():
            last = map_observation(lambda array, row=row: array[row], final_observation)
            legal = None if final_mask is None else final_mask[row]
            end = Final(self._first + int(row), last, legal, bool(terminated[row]), bool(truncated[row]))
            self.ends.append((step, end))
        self.begin(observation, mask)

    def add_search(self, policy: np.ndarray, value: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Complete the step just written with the policy and the value of a search."""
        storage: Any = self._storage
        storage.search_policy[storage.position - 1] = policy
        storage.search_value[storage.position - 1] = value


class StepSampler(GroupSampler):
    """Takes steps for a replay."""

    _collector: RecordedSteps

    def __init__(self, setup: SamplerSetup, number: int, rows: slice) -> None:
        super().__init__(setup, number, rows)
        self._recorder = RoundRecorder(setup.normalizers, rows.start)
        self._stream: torch.Generator | np.random.Generator
        """The random stream of acting."""

    @abstractmethod
    def _take(self, planned: PlannedStep) -> StepBatch:
        """Take one step."""

    def _fill(self, order: RoundOrder) -> CollectedRound:
        self._algorithm.load_acting_weights(self._setup.weights.read())
        self._algorithm.load_acting_state(unpacked(order.acting))
        stream_state(self._stream, unpacked(order.generator))
        self._collector.taken.value = order.step
        if order.normalizers is not None:
            self._setup.normalizers.load_state_dict(dict(order.normalizers))
        self._recorder.start(self._storages[order.rollout])
        events: list[tuple[int, StepEvents]] = []
        for number, planned in enumerate(order.steps):
            step = self._take(planned)
            if step.episodes or step.metrics:
                events.append((number, StepEvents(step.episodes, step.metrics)))
        return CollectedRound(
            state=GroupState(self._env.state_dict(), *self._collector.current()),
            generator=packed(stream_state(self._stream)),
            acting=packed(self._algorithm.acting_state()),
            gained={},
            masked=any(self._recorder.shows_mask),
            truncated=[],
            events=events,
            finished=time.monotonic(),
            shows_mask=self._recorder.shows_mask,
            ends=self._recorder.ends,
        )


class ReplaySampler(StepSampler):
    """Acts with the policy of an off-policy algorithm, or at random."""

    _collector: GroupReplayCollector

    def __init__(self, setup: SamplerSetup, number: int, rows: slice) -> None:
        super().__init__(setup, number, rows)
        num_envs = setup.config.num_envs
        actor = OwnActions(self._algorithm, num_envs, rows)
        # Greedy, since random actions would not show what the network does.
        check_rows_alone(actor, setup.seen_space, num_envs, {**setup.controls, "epsilon": 0.0})
        convolve_own_rows(actor, setup.seen_space, num_envs)
        self._collector = GroupReplayCollector(self._env, actor, self._recorder, setup)
        self._stream = self._collector.generator

    def _take(self, planned: PlannedStep) -> StepBatch:
        return self._collector.step(planned.controls, random=planned.random)


class RecordedSteps(GroupSteps):
    """Steps of a sampler that a recorder writes in the place of a replay."""

    replay: Any
    taken: StepCount

    def _start(self) -> None:
        """Leave it to the run to start the environments, or to restore them."""
        self._observation, self._mask = np.empty(0), None

    def go_on_from(self, state: GroupState) -> None:
        """Go on from other observations."""
        super().go_on_from(state)
        self.replay.begin(state.observation, state.mask)


class GroupReplayCollector(RecordedSteps, ReplayCollector):
    """Takes steps in some environments of a run."""

    def __init__(self, env: Any, actor: OwnActions, recorder: RoundRecorder, setup: SamplerSetup) -> None:
        super().__init__(
            env,
            actor,  # type: ignore[arg-type]
            lambda action, mask: recorder,  # type: ignore[arg-type, return-value]
            seed=setup.config.seed,
            device=CPU,
            generator=torch.Generator(),
        )
        self.steps_at_once = setup.config.num_envs
