"""The sampler process: a copy of the policy, and the environments in which it acts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        return self.rollouts[order.rollout].arrays(rows)


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


def run_sampler(connection: Connection, setup: SamplerSetup, number: int, rows: slice) -> None:
    """Execute commands until told to close or until the run's process is gone."""
    serve_commands(connection, lambda: Sampler(setup, number, rows), failure_of(number))


def failure_of(number: int) -> str:
    """Return what introduces the traceback of an unexpected error in a sampler."""
    return f"sampler {number} failed"


class Sampler:
    """Collects rollouts in the environments `rows` of a run; its methods are the commands."""

    def __init__(self, setup: SamplerSetup, number: int, rows: slice) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._setup = setup
        self._env = _WatchedEnv(setup, number, rows)
        self._normalizers = RowNormalizers(setup.normalizers, rows) if setup.normalizers else None
        params = algorithm_params(setup.config)
        spec = get_algorithm_spec(setup.config.algo)
        self._algorithm = build_algorithm(spec, params, setup.seen_space, setup.taken_space, CPU, torch.Generator())
        accelerate(self._algorithm, setup.config.acceleration, setup.updates)
        num_envs = setup.config.num_envs
        actor = OwnRows(self._algorithm, num_envs, rows)
        check_rows_alone(actor, setup.seen_space, num_envs, setup.controls)
        convolve_own_rows(actor, setup.seen_space, num_envs)
        env = self._env if self._normalizers is None else NormalizedVectorEnv(self._env, self._normalizers)
        self._collector = GroupCollector(env, actor, setup)
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

    def collect(self, order: Order) -> Collected:
        """Fill the own columns of a rollout."""
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
            state=GroupState(self._env.state_dict(), *collector.shown()),
            generator=packed(collector.generator.get_state()),
            acting=packed(self._algorithm.acting_state()),
            gained={} if self._normalizers is None else self._normalizers.gained(),
            masked=masked,
            truncated=collector.truncated,
            events=events,
            finished=time.monotonic(),
        )

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


class GroupCollector(RolloutCollector):
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

    def _start(self) -> None:
        """Leave it to the run to start the environments, or to restore them."""

    @property
    def shows_mask(self) -> bool:
        """Whether the current observations have action masks."""
        return self._mask is not None

    def shown(self) -> tuple[NumpyObservation, np.ndarray | None, np.ndarray | None]:
        """Return the current observations, their masks and the policy's memories."""
        return self._observation, self._mask, self.memory

    def fresh_memory(self) -> np.ndarray | None:
        """Return the memories at the start of episodes."""
        return None if self.memory is None else np.zeros_like(self.memory)

    def go_on_from(self, state: GroupState) -> None:
        """Go on from other observations."""
        self._observation, self._mask, self.memory = state.observation, state.mask, state.memory

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
        slots = []
        for index in range(rows.start, rows.stop):
            self._enter(index - rows.start)
            slots.append(EnvSlot(setup.factory, index))
        super().__init__(slots)

    def _step_slots(self, actions: Any, batch: Any, rewards: np.ndarray) -> GroupStep:
        return step_slots(self._slots, actions, batch, rewards, self._enter)

    def _enter(self, row: int) -> None:
        self._progress[0] += 1
        self._progress[1] = self._start + row
