"""From steps to transitions: n-step returns that end with the episode, and stacks of frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Transitions(NamedTuple):
    """k complete transitions; observations are serial numbers, or `stack` of them if frames are stacked."""

    observation: np.ndarray  # [k] or [k, stack] serial numbers
    action: np.ndarray  # [k, ...]
    reward: np.ndarray  # [k] discounted sum of up to n rewards; or [k, n], single rewards padded with zeros
    discount: np.ndarray  # [k] factor of the next state's value: gamma^n, or 0 after a termination
    successor: np.ndarray  # [k] or [k, stack] serial numbers
    env: np.ndarray  # [k] index of the environment


class NStepAccumulator:
    """Holds back the last n steps of every environment until their returns are complete.

    A terminated episode ends the sum without a bootstrap; a truncated one bootstraps from its true final observation,
    whatever the number of rewards so far.
    """

    def __init__(self, num_envs: int, n_step: int, gamma: float, *, summed: bool = True) -> None:
        """With `summed=False` several rewards are kept separately, and `total` sums them when they are used."""
        self.num_envs = num_envs
        self.n_step = n_step
        self.powers = gamma ** np.arange(n_step + 1)
        self._discounts = np.array([gamma, 0.0], np.float32)  # of a single step, by whether it terminated
        self._envs = np.arange(num_envs)
        self._steps = 0
        self._age = np.full((n_step, num_envs), -1)  # rewards summed so far; -1 marks an empty entry
        self._summed = summed
        # [n_step, num_envs] sums so far, or [n_step, num_envs, n_step] the rewards themselves
        self._return = np.zeros((n_step, num_envs) if summed else (n_step, num_envs, n_step))
        self._observation: np.ndarray | None = None  # [n_step, num_envs] or [n_step, num_envs, stack]
        self._action: np.ndarray | None = None  # [n_step, num_envs, ...]

    def add(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        successor: np.ndarray,
    ) -> Transitions:
        """Add one step of every environment, with observations as serial numbers; return the completed transitions."""
        if self.n_step == 1:  # every step is complete at once
            return Transitions(observation, action, reward, self._discounts.take(terminated), successor, self._envs)
        if self._observation is None or self._action is None:
            self._observation = np.zeros((self.n_step, *observation.shape), observation.dtype)
            self._action = np.zeros((self.n_step, *action.shape), action.dtype)
        place = self._steps % self.n_step
        self._steps += 1
        self._observation[place], self._action[place] = observation, action
        self._return[place], self._age[place] = 0.0, 0
        pending = self._age >= 0
        if self._summed:
            self._return += np.where(pending, self.powers[self._age] * reward, 0.0)
        else:
            places, envs = np.nonzero(pending)
            self._return[places, envs, self._age[places, envs]] = reward[envs]
        self._age += pending
        return self._emit((self._age == self.n_step) | (pending & (terminated | truncated)), terminated, successor)

    def total(self, reward: np.ndarray) -> np.ndarray:
        """Return the discounted sums [...] of separate rewards [..., n_step]; single rewards are returned unchanged."""
        if self.n_step == 1:
            return reward
        return (reward * self.powers[:-1]).sum(-1).astype(np.float32)

    def flush(self, successor: np.ndarray) -> Transitions | None:
        """Complete all steps held back as if their episodes were truncated now with the observation `successor`."""
        if self._observation is None:
            return None
        return self._emit(self._age > 0, np.zeros(self.num_envs, dtype=bool), successor)

    def _emit(self, complete: np.ndarray, terminated: np.ndarray, successor: np.ndarray) -> Transitions:
        assert self._observation is not None
        assert self._action is not None
        places, envs = np.nonzero(complete)
        ages = self._age[places, envs]
        self._age[places, envs] = -1
        return Transitions(
            observation=self._observation[places, envs],
            action=self._action[places, envs],
            reward=self._return[places, envs].astype(np.float32),
            discount=np.where(terminated[envs], 0.0, self.powers[ages]).astype(np.float32),
            successor=successor[envs],
            env=envs,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the steps held back."""
        return {
            "steps": self._steps,
            "age": self._age,
            "return": self._return,
            "observation": self._observation,
            "action": self._action,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the steps held back."""
        age, held = state["age"], (state["observation"], state["action"])
        if (age < -1).any() or (age >= self.n_step).any():
            raise ValueError(f"a step held back for its return has an age of {self.n_step} or more")
        if any(part is not None and part.shape[:2] != age.shape for part in held):
            raise ValueError(
                f"the steps held back are not those of {self.n_step} steps in {self.num_envs} environments"
            )
        self._steps, self._age, self._return = state["steps"], state["age"], state["return"]
        self._observation, self._action = state["observation"], state["action"]


class StackTracker:
    """Tracks which frames form the current stacked observation of every environment."""

    def __init__(self, num_envs: int, stack: int) -> None:
        self.stack = stack
        self.serials = np.zeros((num_envs, stack) if stack > 1 else num_envs, np.int64)

    def restart(self, envs: np.ndarray, serials: np.ndarray) -> None:
        """Begin episodes: the first frame fills the whole stack, as in the environment."""
        self.serials[envs] = serials[:, None] if self.stack > 1 else serials

    def successor(self, serials: np.ndarray) -> np.ndarray:
        """Return the stacks after one more frame per environment, [num_envs]."""
        if self.stack == 1:
            return serials
        return np.concatenate((self.serials[:, 1:], serials[:, None]), axis=1)
