"""Collection of experience: the only place that handles truncation, termination and reset.

Stored data never crosses an episode: a truncated step bootstraps from its true final observation, a terminated one has
no bootstrap, and the observation after either belongs to the next episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.base import OffPolicyAlgorithm, OnPolicyAlgorithm
from rl_training.data.observations import NumpyObservation, Observation, map_observation, to_tensor
from rl_training.data.replay import Replay
from rl_training.data.rollout import Rollout, RolloutStorage
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import StepBatch
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError, EnvironmentFailure, NonFiniteError
from rl_training.runtime.setup.restored_state import check_stored_actions
from rl_training.runtime.setup.streams import derive_seeds


class Collector(Protocol):
    """The methods that a session needs from a collector."""

    @property
    def steps_in_progress(self) -> int:
        """Steps collected but not yet counted by `advance`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state; `env` is None if the environments cannot be saved."""

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a saved state."""


@dataclass
class StepCount:
    """Environment steps of a run, shared by its collectors."""

    value: int = 0


class EnvironmentDriver:
    """The environments of a run and their current observations.

    The environments guarantee that observations are finite and fit their space.
    """

    @property
    def learns_beside_absent(self) -> bool:
        """Whether steps of agents that are absent from their world are left out of learning."""
        return False

    def __init__(self, env: VectorEnv, *, seed: int, device: torch.device) -> None:
        self.env = env
        self.seed = seed
        self.device = device
        self.taken = StepCount()
        self.steps_at_once = env.num_envs  # what one step of the environments adds to those of the run
        self._start()
        self._environment_lost = False

    def _start(self) -> None:
        """Start the episodes of a new run."""
        seeds = derive_seeds(self.seed, "environment", count=self.env.num_envs)
        self._observation, self._mask = self.env.reset(seeds)

    def _shown(self) -> tuple[Observation, Tensor | None]:
        """Return the current observations and action masks on the device."""
        mask = None if self._mask is None else torch.as_tensor(self._mask, device=self.device)
        return to_tensor(self._scaled_observation(), self.device), mask

    def _scaled_observation(self) -> NumpyObservation:
        """Return the current observations, scaled as the algorithm needs them."""
        return self._observation

    def _step_env(self, action: np.ndarray) -> StepBatch:
        try:
            step = self.env.step(action)
        except (EnvironmentFailure, NonFiniteError) as error:
            self._environment_lost = True
            kept = "; the last good checkpoint is kept" if isinstance(error, NonFiniteError) else ""
            place = f"at step {self.taken.value + self.steps_at_once} of the run"
            raise type(error)(f"{place}, {error}{kept}") from error
        self.taken.value += self.steps_at_once
        if step.real is not None and not self.learns_beside_absent:
            raise ConfigError(
                "env_id: some agents of this world come later or leave earlier than others, and this algorithm would "
                "learn from steps that nobody took; choose ppo, a2c or pqn"
            )
        return step

    def _env_state(self) -> dict[str, Any]:
        """Return the state of the environments; `env` is None if they cannot be saved."""
        return {
            "env": None if self._environment_lost else self.env.state_dict(),
            "observation": self._observation,
            "mask": self._mask,
        }

    def _load_env_state(self, state: Mapping[str, Any], *, step: int) -> bool:
        """Restore the environments and return True, or restart them with seeds derived from `step` and return False."""
        self.taken.value = step
        if state["env"] is not None:
            mask = checked_mask(state["mask"], self.env.num_envs, self.env.action_space)
            self._observation, self._mask = state["observation"], mask
            self.env.load_state_dict(state["env"])
            return True
        seeds = derive_seeds(self.seed, "environment", "resumed", step, count=self.env.num_envs)
        self._observation, self._mask = self.env.reset(seeds)
        return False


class RolloutCollector(EnvironmentDriver):
    """Steps the environments and fills rollouts; can be saved in the middle of a rollout."""

    def __init__(
        self,
        env: VectorEnv,
        actor: OnPolicyAlgorithm,
        *,
        num_steps: int,
        seed: int,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        super().__init__(env, seed=seed, device=device)
        self.generator = generator
        self.actor = actor
        self.num_steps = num_steps
        self.storage: RolloutStorage | None = None
        size = actor.memory_size
        self.memory = np.zeros((env.num_envs, size), np.float32) if size else None

    @property
    def learns_beside_absent(self) -> bool:
        """Whether the algorithm leaves such steps out."""
        return self.actor.learns_beside_absent

    @property
    def steps_in_progress(self) -> int:
        """Environment steps of the unfinished rollout."""
        return 0 if self.storage is None or self.storage.full else self.storage.transitions

    def collect(
        self,
        controls: Mapping[str, float],
        *,
        interrupted: Callable[[], bool] = lambda: False,
        on_step: Callable[[StepBatch], None] = lambda step: None,
    ) -> Rollout | None:
        """Fill a rollout and return it, or None if `interrupted()` became true; the next call continues it."""
        if self.storage is None or self.storage.full:
            self.actor.start_rollout()
            if self.storage is not None:
                self.storage.clear()
        while self.storage is None or not self.storage.full:
            if interrupted():
                return None
            self.take_steps(controls, on_step)
        return self.storage.on_device(self._observation, self.device, self.memory, self._mask)

    def take_steps(self, controls: Mapping[str, float], on_step: Callable[[StepBatch], None]) -> None:
        """Take a step of every environment; a kernel may take all steps that the rollout lacks."""
        remembered: Any = {} if self.memory is None else {"memory": self.memory}
        chosen = self.actor.act_on_host(self._observation, self._mask, controls, self.generator, **remembered)
        storage = self.allocated(chosen.action)
        step = self._step_env(chosen.env_action)
        storage.add(
            self._observation,
            chosen.action,
            self._mask,
            step.reward,
            step.terminated,
            step.truncated,
            chosen.log_prob,
            chosen.value,
            self.memory,
            step.real,
        )
        self.memory = chosen.memory
        self.follow(step)
        on_step(step)

    def follow(self, step: StepBatch) -> None:
        """Go on from a step that was stored: value the final observations of truncated episodes."""
        assert self.storage is not None
        if step.final_obs is not step.obs:  # an episode ended
            rows = np.flatnonzero(step.truncated & ~step.terminated)
            if len(rows):
                mask = None if step.final_mask is None else step.final_mask[rows]
                self._value_finals(map_observation(lambda array: array[rows], step.final_obs), mask, rows)
            if self.memory is not None:
                self.memory = np.where((step.terminated | step.truncated)[:, None], np.float32(0.0), self.memory)
        self._observation, self._mask = step.obs, step.action_mask

    def _value_finals(self, final: NumpyObservation, mask: np.ndarray | None, rows: np.ndarray) -> None:
        """Store the values of the true final observations of `rows`, whose episodes were truncated at the last step."""
        assert self.storage is not None
        self.storage.final_value[self.storage.position - 1, rows] = self._values(final, mask, rows)

    def allocated(self, action: np.ndarray) -> RolloutStorage:
        """Return the rollout's storage, made when it is first needed; `action` is an example of one step."""
        if self.storage is None:
            self.storage = RolloutStorage(self.num_steps, self.env.num_envs, self.env.observation_space, action)
        return self.storage

    def _values(
        self, observation: NumpyObservation, mask: np.ndarray | None, rows: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """Return the values of observations of some environments, with what the policy remembers there."""
        also: Any = {} if self.memory is None else {"memory": self.memory[rows]}
        if self.actor.values_of_legal and mask is not None:
            also["mask"] = torch.as_tensor(mask, device=self.device)
        return self.actor.values(to_tensor(observation, self.device), **also).cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of collection; `env` is None if the environments cannot be saved."""
        rollout = self.storage.state_dict() if self.storage is not None and self.steps_in_progress else None
        remembered = {} if self.memory is None else {"memory": self.memory}
        return {**self._env_state(), "rollout": rollout, **remembered}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a saved state; environments that could not be saved restart with seeds derived from `step`."""
        rollout = state["rollout"]
        if self.memory is not None:
            self.memory = checked_memory(state.get("memory"), self.memory.shape)
        if rollout is not None:
            check_stored_actions(rollout["action"], self.env.num_envs, self.env.action_space)
            self.storage = None
            self.allocated(rollout["action"][0]).load_state_dict(rollout)
        if not self._load_env_state(state, step=step):
            mask = checked_mask(state["mask"], self.env.num_envs, self.env.action_space)
            self._end_episodes(state["observation"], mask)
            if self.memory is not None:
                self.memory = np.zeros_like(self.memory)

    def _end_episodes(self, last_observation: NumpyObservation, last_mask: np.ndarray | None) -> None:
        """Mark the last stored step as truncated, since its episodes will not be continued."""
        if self.storage is None or not self.steps_in_progress:
            return
        last = self.storage.position - 1
        running = ~(self.storage.terminated[last] | self.storage.truncated[last])
        self.storage.final_value[last, running] = self._values(last_observation, last_mask)[running]
        self.storage.truncated[last] |= running


def checked_mask(mask: Any, num_envs: int, action_space: Space[Any]) -> np.ndarray | None:
    """Return restored action masks; raise an error if they do not fit the environments."""
    shape = (num_envs, mask_width(action_space))
    if mask is not None and not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == shape):
        raise ValueError(f"the action mask is no array of truth values of the shape {shape}")
    return mask


def checked_memory(memory: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return restored memories; raise an error if they do not fit the policy."""
    if not (isinstance(memory, np.ndarray) and memory.dtype == np.float32 and memory.shape == shape):
        raise ValueError(f"the policy's memory is no array of numbers of the shape {shape}")
    return memory


AnyReplay = TypeVar("AnyReplay", bound=Replay)


class ReplayDriver(EnvironmentDriver, Generic[AnyReplay]):
    """Steps the environments and adds every step to a replay."""

    steps_in_progress = 0  # steps are counted immediately
    steps_left = 0  # steps of the environments that were taken ahead, by samplers

    def __init__(
        self,
        env: VectorEnv,
        make_replay: Callable[[np.ndarray | None], AnyReplay],
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        """`make_replay` gets an example of one step's action masks, if there are any."""
        super().__init__(env, seed=seed, device=device)
        self.replay = make_replay(self._mask)
        self.replay.begin(self._observation, self._mask)

    def _scaled_observation(self) -> NumpyObservation:
        # The replay stores raw observations, so the environments do not scale them.
        return self.replay.normalizers.scale_observation(self._observation)

    def _take(self, action: np.ndarray, env_action: np.ndarray, **stored: Any) -> StepBatch:
        """Take actions [num_envs, ...], given as stored and in the environment's format.

        `stored` is what the replay keeps of a step in addition.
        """
        step = self._step_env(env_action)
        self._store(action, step, **stored)
        return step

    def _store(self, action: np.ndarray, step: StepBatch, **stored: Any) -> None:
        """Add a step that was taken to the replay, and go on from it."""
        self.replay.add(
            action,
            step.reward,
            step.terminated,
            step.truncated,
            step.final_obs,
            step.obs,
            step.final_mask,
            step.action_mask,
            **stored,
        )
        if step.final_obs is not step.obs:  # an episode ended
            self._end_episodes(step.terminated | step.truncated)
        self._observation, self._mask = step.obs, step.action_mask

    def _end_episodes(self, ended: np.ndarray) -> None:
        """Hook: the episodes where `ended` [num_envs] is true have ended or will not be continued."""

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of collection; the rows of the replay are saved separately."""
        return {**self._env_state(), "replay": self.replay.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a saved state; environments that could not be saved restart with seeds derived from `step`."""
        self.replay.load_state_dict(state["replay"])
        if not self._load_env_state(state, step=step):
            self._end_episodes(np.ones(self.env.num_envs, dtype=bool))
            self.replay.begin(self._observation, self._mask)


class ReplayCollector(ReplayDriver[Replay]):
    """Acts with an algorithm, or at random."""

    def __init__(
        self,
        env: VectorEnv,
        actor: OffPolicyAlgorithm,
        make_replay: Callable[[np.ndarray, np.ndarray | None], Replay],
        *,
        seed: int,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        """`make_replay` gets an example of one step's actions and, if there are any, action masks."""
        example = actor.random_actions(env.num_envs, None, torch.Generator(device)).cpu().numpy()
        super().__init__(env, lambda mask: make_replay(example, mask), seed=seed, device=device)
        self.actor = actor
        self.generator = generator
        size = actor.memory_size
        self.memory = np.zeros((env.num_envs, size), np.float32) if size else None

    def _end_episodes(self, ended: np.ndarray) -> None:
        self.actor.end_episodes(ended)
        if self.memory is not None:
            self.memory = np.where(ended[:, None], np.float32(0.0), self.memory)

    def step(self, controls: Mapping[str, float], *, random: bool) -> StepBatch:
        """Take one step in every environment, with random actions if `random` is true."""
        if self.memory is not None:
            return self._step_with_memory(self.memory, controls, random=random)
        observation, mask = self._shown()
        if random:
            action = self.actor.random_actions(self.env.num_envs, mask, self.generator)
        else:
            action = self.actor.act(observation, mask, controls, self.generator)
        return self._take(action.cpu().numpy(), self.actor.env_action(action))

    def _step_with_memory(self, memory: np.ndarray, controls: Mapping[str, float], *, random: bool) -> StepBatch:
        """Take one step and store the memories that it was taken with; random actions are remembered as well."""
        observation, mask = self._shown()
        actor: Any = self.actor
        remembered = torch.as_tensor(memory, device=self.device)
        action, after = actor.act_with_memory(observation, mask, controls, self.generator, remembered)
        if random:
            action = self.actor.random_actions(self.env.num_envs, mask, self.generator)
        self.memory = after.cpu().numpy()
        return self._take(action.cpu().numpy(), self.actor.env_action(action), memory=memory)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of collection; the rows of the replay are saved separately."""
        return {**super().state_dict(), **({} if self.memory is None else {"memory": self.memory})}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a saved state; environments that could not be saved restart with seeds derived from `step`."""
        if self.memory is not None:
            self.memory = checked_memory(state.get("memory"), self.memory.shape)
        super().load_state_dict(state, step=step)
