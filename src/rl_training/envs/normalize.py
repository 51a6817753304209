"""Normalisation of observations and rewards by running statistics, which are saved with the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.spaces import observation_kind
from rl_training.envs.step import Obs, StepBatch
from rl_training.envs.vector import VectorEnv
from rl_training.errors import CheckpointError
from rl_training.experiment.configuration.env_params import EnvParams

_EPSILON = 1e-8
_EPSILON_ARRAY = np.array(_EPSILON)
_WHOLE = "observation"  # the key of an observation that is not a Dict


class RunningMoments:
    """Mean and population variance of all data so far, in float64."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 0
        self._delta, self._squares = np.empty(shape), np.empty(shape)

    def update(self, batch: np.ndarray) -> None:
        """Add a batch [rows, *shape] by the parallel algorithm of Chan, Golub and LeVeque.

        Everything is computed in place: new arrays would take longer than the arithmetic.
        """
        rows = len(batch)
        total = self.count + rows
        batch = np.asarray(batch, dtype=np.float64)
        mean, var, delta, squares = self.mean, self.var, self._delta, self._squares
        # `mean` and `var` of NumPy take several times as long on small arrays.
        batch_mean = batch[0] if rows == 1 else np.add.reduce(batch) / rows
        np.subtract(batch_mean, mean, delta)
        np.multiply(delta, delta, squares)
        np.multiply(squares, self.count * rows / total, squares)
        if rows > 1:
            np.add(np.add.reduce(np.square(batch - batch_mean)), squares, squares)
        np.multiply(var, float(self.count), var)  # an int would have to be converted
        np.add(var, squares, var)
        np.divide(var, float(total), var)
        np.multiply(delta, rows / total, delta)
        np.add(mean, delta, mean)
        self.count = total

    def merge(self, mean: np.ndarray, var: np.ndarray, count: int) -> None:
        """Add what groups of `count` rows each have in common, given their means and variances [groups, *shape]."""
        if count == 0:
            return
        joined = np.add.reduce(mean) / len(mean)
        spread = np.add.reduce(var + np.square(mean - joined)) / len(mean)
        rows = count * len(mean)
        total = self.count + rows
        delta = joined - self.mean
        self.var = np.asarray(
            (self.var * self.count + spread * rows + np.square(delta) * (self.count * rows / total)) / total
        )
        self.mean = np.asarray(self.mean + delta * (rows / total))
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        return {"mean": np.array(self.mean), "var": np.array(self.var), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mean, var = np.array(state["mean"], dtype=np.float64), np.array(state["var"], dtype=np.float64)
        if mean.shape != self.mean.shape or var.shape != self.var.shape:
            raise CheckpointError(
                f"the checkpoint's normaliser has shape {mean.shape}, the environment needs {self.mean.shape}"
            )
        self.mean, self.var, self.count = mean, var, int(state["count"])


class ScalarMoments:
    """`RunningMoments` of numbers, in Python's floats: the same bits as NumPy's, in a fraction of the time."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.var = 1.0
        self.count = 0

    def update(self, batch: np.ndarray) -> None:
        """Add a batch [rows] of float64."""
        rows = len(batch)
        total = self.count + rows
        batch_mean = float(batch[0]) if rows == 1 else float(np.add.reduce(batch)) / rows
        delta = batch_mean - self.mean
        squares = delta * delta * (self.count * rows / total)
        if rows > 1:
            squares += float(np.add.reduce(np.square(batch - batch_mean)))
        self.var = (self.var * self.count + squares) / total
        self.mean += delta * (rows / total)
        self.count = total

    def merge(self, mean: np.ndarray, var: np.ndarray, count: int) -> None:
        """Add what groups of `count` numbers each have in common, given their means and variances [groups]."""
        moments = RunningMoments(())
        moments.load_state_dict(self.state_dict())
        moments.merge(mean, var, count)
        self.mean, self.var, self.count = float(moments.mean), float(moments.var), moments.count

    def state_dict(self) -> dict[str, Any]:
        return {"mean": np.array(self.mean), "var": np.array(self.var), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        moments = RunningMoments(())
        moments.load_state_dict(state)
        self.mean, self.var, self.count = float(moments.mean), float(moments.var), moments.count


class _Clip:
    """Limits arrays to both sides; `np.clip` takes several times as long on small arrays."""

    def __init__(self, limit: float) -> None:
        # Arrays, which need no conversion at every call.
        self._low, self._high = np.array(-limit), np.array(limit)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Limit float64 values in place and return them as float32."""
        np.maximum(values, self._low, out=values)
        np.minimum(values, self._high, out=values)
        return values.astype(np.float32)


class ObservationNormalizer:
    """Normalises every Box that is not an image to mean 0 and standard deviation 1; all else passes unchanged."""

    def __init__(self, space: gym.Space[Any], clip: float) -> None:
        self.space = space
        self.clip = clip
        self._clipped = _Clip(clip)
        parts = space.spaces if isinstance(space, gym.spaces.Dict) else {_WHOLE: space}
        self._moments = {
            key: RunningMoments(part.shape)
            for key, part in parts.items()
            if isinstance(part, gym.spaces.Box) and observation_kind(part) != "image"
        }
        scaled = {
            key: gym.spaces.Box(-clip, clip, part.shape, np.float32) if key in self._moments else part
            for key, part in parts.items()
        }
        self.normalized_space: gym.Space[Any] = (
            gym.spaces.Dict(list(scaled.items())) if isinstance(space, gym.spaces.Dict) else scaled[_WHOLE]
        )

    @property
    def moments(self) -> dict[str, RunningMoments]:
        """The statistics of every part that is normalised."""
        return self._moments

    def update(self, obs: Obs) -> None:
        """Add a batch of observations to the statistics."""
        for key, moments in self._moments.items():
            moments.update(obs[key] if isinstance(obs, dict) else obs)

    def __call__(self, obs: Obs) -> Obs:
        """Return one observation or a batch, normalised by the current statistics."""
        if isinstance(obs, dict):
            return {key: self._scale(key, part) for key, part in obs.items()}
        return self._scale(_WHOLE, obs)

    def _scale(self, key: str, part: np.ndarray) -> np.ndarray:
        moments = self._moments.get(key)
        if moments is None:
            return part
        deviation = np.add(moments.var, _EPSILON_ARRAY)
        np.sqrt(deviation, deviation)
        scaled = np.subtract(part, moments.mean)
        np.divide(scaled, deviation, scaled)
        return self._clipped(scaled)

    def state_dict(self) -> dict[str, Any]:
        return {key: moments.state_dict() for key, moments in self._moments.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self._moments):
            raise CheckpointError(
                f"the checkpoint normalises {sorted(state)!s:.200}, the environment has {sorted(self._moments)}"
            )
        for key, moments in self._moments.items():
            moments.load_state_dict(state[key])


class RewardNormalizer:
    """Scales rewards by the running standard deviation of the discounted return, without shifting them."""

    def __init__(self, num_envs: int, gamma: float, clip: float) -> None:
        self.gamma = gamma
        self.clip = clip
        self._clipped = _Clip(clip)
        self._moments = ScalarMoments()
        self._returns = np.zeros(num_envs)  # [num_envs] discounted sums of the episodes in progress

    @property
    def moments(self) -> ScalarMoments:
        """The statistics of discounted returns."""
        return self._moments

    def reset(self) -> None:
        """Discard the episodes in progress, but keep the statistics."""
        self._returns[:] = 0.0

    def update(self, reward: np.ndarray, ended: np.ndarray | None, real: np.ndarray | None = None) -> None:
        """Add one step [num_envs] to the statistics; `ended` may be None if no episode did.

        Rows that are not `real` belong to absent agents, whose returns are not counted.
        """
        np.multiply(self._returns, self.gamma, self._returns)
        np.add(self._returns, reward, self._returns)
        self._moments.update(self._returns if real is None else self._returns[real])
        if ended is not None:
            self._returns[ended] = 0.0

    def merge(self, mean: np.ndarray, var: np.ndarray, count: int, *, returns: np.ndarray) -> None:
        """Add `count` steps of every environment, given the statistics of each, and set the `returns` in progress."""
        self._moments.merge(mean, var, count)
        self._returns[:] = returns

    def __call__(self, reward: np.ndarray) -> np.ndarray:
        """Return rewards [...] of single steps, scaled by the current statistics, as float32."""
        deviation = math.sqrt(self._moments.var + _EPSILON)
        if reward.shape == (1,):  # without NumPy's cost per call
            return np.array([min(max(float(reward[0]) / deviation, -self.clip), self.clip)], np.float32)
        # A float64 of NumPy, so that the quotient is one too.
        return self._clipped(np.asarray(np.divide(reward, np.float64(deviation))))

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self._moments.state_dict(), "returns": self._returns.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        returns = np.array(state["returns"], dtype=np.float64)
        if returns.shape != self._returns.shape:
            raise CheckpointError(
                f"the checkpoint normalises the rewards of {len(returns)} environments, "
                f"the run has {len(self._returns)}"
            )
        self._moments.load_state_dict(state["moments"])
        self._returns = returns


class Normalizers:
    """The normalisers of observations and rewards of one task; None leaves them unchanged."""

    def __init__(
        self, observation: ObservationNormalizer | None = None, reward: RewardNormalizer | None = None
    ) -> None:
        self.observation = observation
        self.reward = reward

    def __bool__(self) -> bool:
        """Return whether anything is normalised."""
        return self.observation is not None or self.reward is not None

    def moments(self) -> list[RunningMoments | ScalarMoments]:
        """Return all running statistics, in a fixed order."""
        observation = [] if self.observation is None else list(self.observation.moments.values())
        return [*observation, *([] if self.reward is None else [self.reward.moments])]

    def begin(self, obs: Obs) -> None:
        """Add the first observations of new episodes; episodes in progress are discarded."""
        if self.reward is not None:
            self.reward.reset()
        if self.observation is not None:
            self.observation.update(obs)

    def update(self, step: StepBatch) -> None:
        """Add one step of every environment: its rewards, and the observations to act on next."""
        if self.reward is not None:
            ended = None if step.final_obs is step.obs else step.terminated | step.truncated
            self.reward.update(step.reward, ended, step.real)
        if self.observation is not None:
            shown = step.obs if step.present is None else _rows_of(step.obs, step.present)
            self.observation.update(shown)

    def scale_observation(self, obs: Obs) -> Obs:
        """Return observations normalised by the current statistics, or the same object without a normaliser."""
        return obs if self.observation is None else self.observation(obs)

    def scale_reward(self, reward: np.ndarray) -> np.ndarray:
        """Return rewards of single steps scaled by the current statistics, or the same object without a normaliser."""
        return reward if self.reward is None else self.reward(reward)

    def state_dict(self) -> dict[str, Any]:
        observation, reward = self.observation, self.reward
        return {
            "observation": None if observation is None else observation.state_dict(),
            "reward": None if reward is None else reward.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved statistics."""
        for name, normalizer in (("observation", self.observation), ("reward", self.reward)):
            if (state[name] is None) != (normalizer is None):
                raise CheckpointError(f"the checkpoint and the run do not agree on normalize_{name}")
            if normalizer is not None:
                normalizer.load_state_dict(state[name])


class MeasuredVectorEnv:
    """A vector environment that updates normalisation statistics and returns raw data.

    A replay normalises steps when they are sampled: by then the statistics have changed.
    """

    def __init__(self, env: VectorEnv, normalizers: Normalizers) -> None:
        self.env = env
        self.normalizers = normalizers
        self.num_envs = env.num_envs
        self.action_space = env.action_space
        self.observation_space = env.observation_space

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        obs, mask = self.env.reset(seeds)
        self.normalizers.begin(obs)
        return obs, mask

    def step(self, actions: np.ndarray) -> StepBatch:
        batch = self.env.step(actions)
        self.normalizers.update(batch)
        return batch

    def state_dict(self) -> dict[str, Any] | None:
        env_state = self.env.state_dict()
        return None if env_state is None else {"env": env_state, "normalizers": self.normalizers.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.normalizers.load_state_dict(state["normalizers"])
        self.env.load_state_dict(state["env"])

    def close(self) -> None:
        self.env.close()


class NormalizedVectorEnv(MeasuredVectorEnv):
    """A vector environment with normalised observations and rewards; episodes keep their raw returns."""

    def __init__(self, env: VectorEnv, normalizers: Normalizers) -> None:
        super().__init__(env, normalizers)
        if normalizers.observation is not None:
            self.observation_space = normalizers.observation.normalized_space

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        obs, mask = super().reset(seeds)
        return self.normalizers.scale_observation(obs), mask

    def step(self, actions: np.ndarray) -> StepBatch:
        batch = super().step(actions)
        scale = self.normalizers.scale_observation
        obs = scale(batch.obs)
        final_obs = obs if batch.final_obs is batch.obs else scale(batch.final_obs)
        reward = self.normalizers.scale_reward(batch.reward)
        return batch._replace(obs=obs, reward=reward, final_obs=final_obs)


def _rows_of(obs: Obs, rows: np.ndarray) -> Obs:
    """Return the selected rows of a batch."""
    return {key: part[rows] for key, part in obs.items()} if isinstance(obs, dict) else obs[rows]


def with_normalization(env: VectorEnv, params: EnvParams, *, gamma: float, raw: bool = False) -> VectorEnv:
    """Return `env` with the normalisers that `params` selects, or `env` itself if it selects none.

    With `raw` the statistics are updated but the data stays raw (`normalizers_of` returns the normalisers).
    """
    normalizers = make_normalizers(env.observation_space, env.num_envs, params, gamma=gamma)
    return (MeasuredVectorEnv if raw else NormalizedVectorEnv)(env, normalizers) if normalizers else env


def make_normalizers(space: gym.Space[Any], num_envs: int, params: EnvParams, *, gamma: float) -> Normalizers:
    """Return the normalisers that `params` selects, of environments with this observation space."""
    observation = reward = None
    if params.normalize_observation:
        observation = ObservationNormalizer(space, params.clip_observation)
    if params.normalize_reward:
        reward = RewardNormalizer(num_envs, gamma, params.clip_reward)
    return Normalizers(observation, reward)


def normalizers_of(env: Any) -> Normalizers:
    """Return the normalisers of environments."""
    found = getattr(env, "normalizers", None)
    return found if isinstance(found, Normalizers) else Normalizers()
