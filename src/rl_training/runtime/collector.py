"""Collecting experience: the one place that decides what a truncation, a termination and a reset mean.

What is stored never crosses an episode: a truncated step bootstraps from its true final observation, a terminated
one from nothing, and the observation after either belongs to the next episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.data.observations import Observation, map_observation, to_tensor
from rl_training.data.rollout import Rollout
from rl_training.envs.step import StepBatch
from rl_training.envs.vector import VectorEnv
from rl_training.errors import EnvironmentFailure, NonFiniteError
from rl_training.runtime.streams import derive_seeds


class OnPolicyActor(Protocol):
    """What collecting needs of an on-policy algorithm."""

    def start_rollout(self) -> None:
        """A new rollout begins."""

    def act(self, observation: Observation, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return exploring actions."""

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions in the form the environment takes."""

    def values(self, observation: Observation) -> Tensor:
        """Return the critic's values."""


class RolloutCollector:
    """Steps the environments and fills rollouts; can be saved at any step of one."""

    def __init__(
        self,
        env: VectorEnv,
        actor: OnPolicyActor,
        *,
        num_steps: int,
        seed: int,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.env = env
        self.actor = actor
        self.num_steps = num_steps
        self.seed = seed
        self.device = device
        self.generator = generator
        self._observation, self._mask = env.reset(derive_seeds(seed, "environment", count=env.num_envs))
        self._rollout: Rollout | None = None
        self._environment_lost = False

    @property
    def steps_in_progress(self) -> int:
        """Environment steps of the unfinished rollout."""
        return 0 if self._rollout is None or self._rollout.full else self._rollout.transitions

    def collect(
        self,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        on_step: Callable[[StepBatch], None] = lambda step: None,
    ) -> Rollout | None:
        """Fill a rollout and return it, or None where `interrupted()` stops it; it goes on at the next call."""
        if self._rollout is None or self._rollout.full:
            self.actor.start_rollout()
            if self._rollout is not None:
                self._rollout.clear()
        while self._rollout is None or not self._rollout.full:
            if interrupted():
                return None
            on_step(self._step())
        self._rollout.finish(self._observation)
        self._check_finite(self._rollout)
        return self._rollout

    def _step(self) -> StepBatch:
        observation = to_tensor(self._observation, self.device)
        mask = None if self._mask is None else torch.as_tensor(self._mask, device=self.device)
        action = self.actor.act(observation, mask, self.generator)
        if self._rollout is None:
            self._rollout = Rollout(
                self.num_steps, self.env.num_envs, self.env.observation_space, action, mask, self.device
            )
        try:
            step = self.env.step(self.actor.env_action(action))
        except EnvironmentFailure:
            self._environment_lost = True
            raise
        self._rollout.add(observation, action, mask, step.reward, step.terminated, step.truncated)
        bootstrapped = step.truncated & ~step.terminated
        if bootstrapped.any():
            rows = np.flatnonzero(bootstrapped)
            final = to_tensor(map_observation(lambda array: array[rows], step.final_obs), self.device)
            self._rollout.final_value[self._rollout.position - 1, rows] = self.actor.values(final)
        self._observation, self._mask = step.obs, step.action_mask
        return step

    def _check_finite(self, rollout: Rollout) -> None:
        """Refuse NaN and infinity from the environments before anything learns from them."""
        named: list[tuple[str, Tensor]] = [("reward", rollout.reward)]
        if isinstance(rollout.observation, dict):
            named += [(f"observation[{key!r}]", array) for key, array in rollout.observation.items()]
        else:
            named.append(("observation", rollout.observation))
        for name, array in named:
            if array.is_floating_point() and not bool(array.isfinite().all()):
                place = (~array.isfinite()).nonzero()[0].tolist()
                raise NonFiniteError(
                    f"environment {place[1]} gave a {name} that is NaN or infinite at step {place[0]} of the rollout; "
                    "the last good checkpoint is kept. Repair the environment, or clip what it returns"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides what is collected next; `env` is None where it cannot be saved."""
        return {
            "env": None if self._environment_lost else self.env.state_dict(),
            "observation": self._observation,
            "mask": self._mask,
            "rollout": self._rollout.state_dict() if self._rollout is not None and self.steps_in_progress else None,
        }

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Go on from a saved state; environments that could not be saved restart by seeds derived from `step`."""
        self._observation, self._mask = state["observation"], state["mask"]
        if state["rollout"] is not None:
            self._rollout = self._restored_rollout(state["rollout"])
        if state["env"] is not None:
            self.env.load_state_dict(state["env"])
        else:
            self._end_episodes()
            seeds = derive_seeds(self.seed, "environment", "resumed", step, count=self.env.num_envs)
            self._observation, self._mask = self.env.reset(seeds)

    def _restored_rollout(self, state: Mapping[str, Any]) -> Rollout:
        mask = None if state["mask"] is None else state["mask"][0]
        rollout = Rollout(
            self.num_steps,
            self.env.num_envs,
            self.env.observation_space,
            state["action"][0],
            mask,
            self.device,
        )
        rollout.load_state_dict(state)
        return rollout

    def _end_episodes(self) -> None:
        """Mark the last stored step as truncated, since the episodes it belongs to will not go on."""
        if self._rollout is None or not self.steps_in_progress:
            return
        last = self._rollout.position - 1
        running = ~(self._rollout.terminated[last] | self._rollout.truncated[last])
        values = self.actor.values(to_tensor(self._observation, self.device))
        self._rollout.final_value[last] = torch.where(running, values, self._rollout.final_value[last])
        self._rollout.truncated[last] |= running
