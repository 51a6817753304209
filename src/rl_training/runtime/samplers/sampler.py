"""The sampler process: a copy of the policy, and the environments in which it acts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space

from rl_training.data.observations import NumpyObservation
from rl_training.data.rollout import RolloutStorage
from rl_training.envs.normalize import NormalizedVectorEnv, Normalizers
from rl_training.envs.slot import EnvFactory, EnvSlot
from rl_training.envs.step import StepBatch, StepEvents
from rl_training.envs.vector import GroupStep, SyncVectorEnv, step_slots
from rl_training.envs.workers.row_normalize import RowNormalizers
from rl_training.envs.workers.serving import serve_commands
from rl_training.envs.workers.shared_rows import SharedArray
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.own_code.user_code import AdoptedCode
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.samplers.own_rows import OwnRows, check_rows_alone, convolve_own_rows
from rl_training.runtime.samplers.shared_memory import SharedRollout, SharedWeights, packed, unpacked
from rl_training.runtime.setup.acceleration import accelerate
from rl_training.runtime.setup.torch_setup import keep_freed_memory
from rl_training.runtime.setup.user_networks import build_algorithm

CPU = torch.device("cpu")


@dataclass(frozen=True)
class SamplerSetup:
    """Everything that all samplers of a run have in common; it is sent to them when they start."""

    code: AdoptedCode
    config: TrainConfig
    make: Callable[[SamplerSetup, int, slice], GroupSampler]
    """Makes a sampler with its number for some of the environments."""
    factory: EnvFactory
    normalizers: Normalizers
    seen_space: Space[Any]
    taken_space: Space[Any]
    num_steps: int
    updates: float | None
    """About how many gradient steps the run takes, which decides whether kernels pay."""
    controls: Mapping[str, float]
    """Scheduled scalars, to try the policy with."""
    weights: SharedWeights
    rollouts: tuple[SharedRollout, ...]
    progress: SharedArray
    """[num_samplers, 2] how often each sampler entered an environment, and which it entered last."""

    def outgoing(self) -> list[np.ndarray]:
        """Return the shared arrays that the run writes and samplers read."""
        return self.weights.arrays()

    def incoming(self, order: Order, rows: slice) -> list[np.ndarray]:
        """Return the shared arrays that the sampler of these environments fills to execute an order."""
        return self.rollouts[order.rollout].arrays(rows, order.length)


@dataclass(frozen=True)
class Order:
    """What a sampler needs to know to collect one rollout; the weights lie in shared memory."""

    rollout: int
    """Index of the shared rollout to fill."""
    step: int
    """Steps of the run before the rollout."""
    controls: Mapping[str, float]
    generator: Any
    """State of the policy's random stream, packed."""
    normalizers: Mapping[str, Any] | None
    acting: Mapping[str, Any]
    """State of the algorithm's parts that acting changes, packed."""

    @property
    def length(self) -> int | None:
        """Steps of the shared rollout that are filled; None: all."""
        return None


@dataclass(frozen=True)
class GroupState:
    """The environments of one sampler between two rollouts."""

    env: dict[str, Any] | None
    """None if they cannot be saved."""
    observation: NumpyObservation
    mask: np.ndarray | None
    memory: np.ndarray | None


class TruncatedEpisodes(NamedTuple):
    """The ends of episodes that were truncated at the same step, which the run values."""

    step: int
    rows: np.ndarray
    """[ends] the environments, as the run numbers them."""
    observation: NumpyObservation
    """[ends, ...] the true final observations."""
    mask: np.ndarray | None
    memory: np.ndarray | None


@dataclass(frozen=True)
class Collected:
    """What a sampler returns beside the columns that it has written to shared memory."""

    state: GroupState
    generator: Any
    acting: Mapping[str, Any]
    gained: Mapping[str, Any]
    """What the normalisers have seen."""
    masked: bool
    """Whether any step had action masks."""
    truncated: list[TruncatedEpisodes]
    events: list[tuple[int, StepEvents]]
    """The steps at which episodes ended or metrics were given."""
    finished: float
    """When the rollout was full, by the machine's monotonic clock."""
    stepping_seconds: float = field(default=0.0, kw_only=True)
    """Time in environments."""
    acting_seconds: float = field(default=0.0, kw_only=True)
    """Time of the policy, and of everything else that a run without samplers does too."""


def run_sampler(connection: Connection, setup: SamplerSetup, number: int, rows: slice) -> None:
    """Execute commands until told to close or until the run's process is gone."""
    serve_commands(connection, lambda: setup.make(setup, number, rows), failure_of(number))


def failure_of(number: int) -> str:
    """Return what introduces the traceback of an unexpected error in a sampler."""
    return f"sampler {number} failed"


class GroupSampler(ABC):
    """Holds the environments `rows` of a run and a copy of its algorithm; its methods are the commands."""

    _collector: GroupSteps

    def __init__(self, setup: SamplerSetup, number: int, rows: slice) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._setup = setup
        self._env = _WatchedEnv(setup, number, rows)
        params = algorithm_params(setup.config)
        spec = get_algorithm_spec(setup.config.algo)
        self._algorithm = build_algorithm(spec, params, setup.seen_space, setup.taken_space, CPU, torch.Generator())
        accelerate(self._algorithm, setup.config.acceleration, setup.updates)
        self._storages = [RolloutStorage.over(rollout.columns(rows)) for rollout in setup.rollouts]

    def reset(self, seeds: list[int]) -> GroupState:
        """Start the environments with their seeds and return their raw observations."""
        observation, mask = self._env.reset(seeds)
        memory = self._collector.fresh_memory()
        return GroupState(self._env.state_dict(), observation, mask, memory)

    def restore(self, state: GroupState) -> None:
        """Go on from a state; environments without a saved one stay as they are."""
        if state.env is not None:
            self._env.load_state_dict(state.env)
        self._collector.go_on_from(state)

    def collect(self, order: Any) -> Collected:
        """Execute an order and return the results with the time that they took."""
        env, started = self._env, time.perf_counter()
        env.stepping = env.saving = 0.0
        collected = self._fill(order)
        acting = time.perf_counter() - started - env.stepping - env.saving
        return replace(collected, stepping_seconds=env.stepping, acting_seconds=acting)

    @abstractmethod
    def _fill(self, order: Any) -> Collected:
        """Fill the own columns of a rollout or round."""

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


class Sampler(GroupSampler):
    """Collects rollouts."""

    _collector: GroupCollector

    def __init__(self, setup: SamplerSetup, number: int, rows: slice) -> None:
        super().__init__(setup, number, rows)
        self._normalizers = RowNormalizers(setup.normalizers, rows) if setup.normalizers else None
        num_envs = setup.config.num_envs
        actor = OwnRows(self._algorithm, num_envs, rows)
        check_rows_alone(actor, setup.seen_space, num_envs, setup.controls)
        convolve_own_rows(actor, setup.seen_space, num_envs)
        env = self._env if self._normalizers is None else NormalizedVectorEnv(self._env, self._normalizers)
        self._collector = GroupCollector(env, actor, setup)

    def _fill(self, order: Order) -> Collected:
        self._algorithm.load_weights(self._setup.weights.read())
        self._algorithm.load_acting_state(unpacked(order.acting))
        collector = self._collector
        collector.generator.set_state(unpacked(order.generator))
        collector.taken.value = order.step
        if self._normalizers is not None:
            assert order.normalizers is not None
            self._normalizers.start(order.normalizers)
        events: list[tuple[int, StepEvents]] = []
        masked = False

        def note(step: StepBatch) -> None:
            nonlocal masked
            masked |= step.action_mask is not None or step.final_mask is not None
            if step.episodes or step.metrics:
                events.append((storage.position - 1, StepEvents(step.episodes, step.metrics)))

        storage = self._storages[order.rollout]
        masked |= collector.shows_mask
        collector.fill(storage, order.controls, note)
        return Collected(
            state=GroupState(self._env.state_dict(), *collector.current()),
            generator=packed(collector.generator.get_state()),
            acting=packed(self._algorithm.acting_state()),
            gained={} if self._normalizers is None else self._normalizers.gained(),
            masked=masked,
            truncated=collector.truncated,
            events=events,
            finished=time.monotonic(),
        )


class GroupSteps:
    """What every collector of a sampler has: the run tells it where to go on."""

    _observation: NumpyObservation
    _mask: np.ndarray | None
    memory: np.ndarray | None = None

    def _start(self) -> None:
        """Leave it to the run to start the environments, or to restore them."""

    def current(self) -> tuple[NumpyObservation, np.ndarray | None, np.ndarray | None]:
        """Return the current observations, their masks and the policy's memories."""
        return self._observation, self._mask, self.memory

    def fresh_memory(self) -> np.ndarray | None:
        """Return the memories at the start of episodes."""
        return None if self.memory is None else np.zeros_like(self.memory)

    def go_on_from(self, state: GroupState) -> None:
        """Go on from other observations."""
        self._observation, self._mask, self.memory = state.observation, state.mask, state.memory


class GroupCollector(GroupSteps, RolloutCollector):
    """Collects for some environments of a run; the run values the final observations of truncated episodes."""

    def __init__(self, env: Any, actor: OwnRows, setup: SamplerSetup) -> None:
        super().__init__(
            env,
            actor,  # type: ignore[arg-type]
            num_steps=setup.num_steps,
            seed=setup.config.seed,
            device=CPU,
            generator=torch.Generator(),
        )
        self.steps_at_once = setup.config.num_envs
        self._first = actor.rows.start
        self.truncated: list[TruncatedEpisodes] = []  # in the latest rollout

    @property
    def shows_mask(self) -> bool:
        """Whether the current observations have action masks."""
        return self._mask is not None

    def fill(self, storage: RolloutStorage, controls: Mapping[str, float], note: Callable[[StepBatch], None]) -> None:
        """Collect a rollout into `storage`."""
        self.actor.start_rollout()
        storage.clear()
        self.storage, self.truncated = storage, []
        while not storage.full:
            self.take_steps(controls, note)

    def _value_finals(self, final: NumpyObservation, mask: np.ndarray | None, rows: np.ndarray) -> None:
        assert self.storage is not None
        memory = None if self.memory is None else self.memory[rows]
        ends = TruncatedEpisodes(self.storage.position - 1, self._first + rows, final, mask, memory)
        self.truncated.append(ends)


class _WatchedEnv(SyncVectorEnv):
    """Environments that say which of them is running, so that one that hangs or dies can be named."""

    def __init__(self, setup: SamplerSetup, number: int, rows: slice) -> None:
        self._start = rows.start
        self._progress = setup.progress.view()[number]
        self.stepping = self.saving = 0.0
        """Seconds of steps and of snapshots since the start of a rollout."""
        slots = []
        for index in range(rows.start, rows.stop):
            self._enter(index - rows.start)
            slots.append(EnvSlot(setup.factory, index))
        super().__init__(slots)

    def _step_slots(self, actions: Any, batch: Any, rewards: np.ndarray) -> GroupStep:
        started = time.perf_counter()
        step = step_slots(self._slots, actions, batch, rewards, self._enter)
        self.stepping += time.perf_counter() - started
        return step

    def state_dict(self) -> dict[str, Any] | None:
        """Return the complete state of the environments; None if they cannot be saved."""
        started = time.perf_counter()
        state = super().state_dict()
        self.saving += time.perf_counter() - started
        return state

    def _enter(self, row: int) -> None:
        self._progress[0] += 1
        self._progress[1] = self._start + row
