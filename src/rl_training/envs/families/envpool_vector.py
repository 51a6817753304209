"""EnvPool: environments in C++ that step in its own threads, with same-step reset and Gymnasium's spaces.

EnvPool's environments cannot be saved, so a resumed run starts new episodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rl_training.envs.checks import non_finite_row
from rl_training.envs.slot import EnvFactory, EnvSlot
from rl_training.envs.step import Episode, Obs, StepBatch
from rl_training.envs.vector import VectorEnv
from rl_training.envs.wrapping import WRAPS_NOTHING, wraps_task
from rl_training.errors import CheckpointError, ConfigError, NonFiniteError
from rl_training.experiment.configuration.env_params import EnvParams

_FAMILIES = ("gymnasium.envs.classic_control.", "gymnasium.envs.mujoco.")
_ENDLESS = 2**30  # EnvPool adds one to its limit of steps
_ATARI_TAKEN = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")
_LARGEST_SEED = 2**31 - 1


def envpool_obstacle(spec: EnvSpec, params: EnvParams) -> str | None:
    """Return why EnvPool cannot run this, with the repair, or None; `make_envpool` compares the versions."""
    if wraps_task(params):
        return WRAPS_NOTHING
    if spec.entry_point == "ale_py.env:AtariEnv":
        return _atari_obstacle(params)
    if not isinstance(spec.entry_point, str) or not spec.entry_point.startswith(_FAMILIES):
        return f"{spec.id} is neither classic control nor MuJoCo nor Atari; use `auto`"
    if params.frame_stack > 1 or params.reward_sign:
        key = "frame_stack" if params.frame_stack > 1 else "reward_sign"
        return f"it does not take {key}; remove env_kwargs.{key}, or use `local_sync`"
    if params.make_kwargs:
        keys = ", ".join(params.make_kwargs)
        return (
            f"it has the default arguments and does not take {keys}; remove them from env_kwargs, or use `local_sync`"
        )
    return None


def _atari_obstacle(params: EnvParams) -> str | None:
    if not params.atari:
        return "it always preprocesses frames; set env_kwargs.atari to true"
    if not params.grayscale:
        return "it shows gray frames here; set env_kwargs.grayscale to true, or use `local_sync`"
    if not params.noop_max:
        return "its games start with a no-op; set env_kwargs.noop_max to 1 or more, or use `local_sync`"
    foreign = [key for key in params.make_kwargs if key not in _ATARI_TAKEN]
    if foreign:
        return f"it does not take {', '.join(foreign)}; remove env_kwargs.{foreign[0]}, or use `local_sync`"
    return None


def make_envpool(factory: EnvFactory, num_envs: int, num_threads: int) -> VectorEnv:
    """Make environments of EnvPool with the id and the spaces of the environment that `factory` makes.

    Raises a `ConfigError` if EnvPool has no environment of this name and version, or one with other spaces.
    """
    if factory.params.atari:
        from rl_training.envs.families.envpool_atari import EnvPoolAtari

        return EnvPoolAtari(factory, num_envs, num_threads)
    probe = EnvSlot(factory, 0)
    try:
        spaces = probe.observation_space, probe.action_space
    finally:
        probe.close()
    spec = factory.spec
    check_pool(spec.id, *spaces)
    limit = factory.params.max_episode_steps or spec.max_episode_steps
    return EnvPoolVectorEnv(spec.id, *spaces, num_envs=num_envs, num_threads=num_threads, max_episode_steps=limit)


def check_pool(name: str, observation_space: gym.Space[Any], action_space: gym.Space[Any], **config: Any) -> None:
    """Raise an error unless EnvPool has an environment of this name and version with these spaces."""
    import envpool

    known = envpool.list_all_envs()
    if name not in known:
        family = name.rsplit("-v", 1)[0]
        versions = sorted(other for other in known if other.rsplit("-v", 1)[0] == family)
        has = f"it has {', '.join(versions)}" if versions else "it has no version of it"
        raise ConfigError(
            f"execution_backend: EnvPool {envpool.__version__} has no `{name}` ({has}), and another version is another "
            "task; use `auto`"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, about the precision of the bounds of EnvPool's spaces
        spec = envpool.make_spec(name, **config)
        pairs = ((observation_space, spec.observation_space), (action_space, spec.action_space))
    for ours, theirs in pairs:
        same = ours.shape == theirs.shape and getattr(ours, "n", None) == getattr(theirs, "n", None)
        if not same:
            raise ConfigError(
                f"execution_backend: `{name}` of EnvPool {envpool.__version__} has {theirs} where Gymnasium's has "
                f"{ours}; use `auto`"
            )


def open_pool(name: str, seeds: Sequence[int], num_threads: int, **config: Any) -> tuple[Any, np.dtype[Any]]:
    """Make a pool and return it with the dtype of its actions; it can be seeded only when it is made."""
    import envpool

    # Larger seeds are refused by EnvPool.
    small = [int(np.random.SeedSequence(int(seed)).generate_state(1)[0]) & _LARGEST_SEED for seed in seeds]
    num_envs = len(small)
    threads = min(num_threads, num_envs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        pool = envpool.make_gymnasium(name, num_envs=num_envs, seed=small, num_threads=threads, **config)
        pool.observation_space  # noqa: B018 - built on first use, which would warn later
        return pool, pool.action_space.dtype


class EnvPoolVectorEnv:
    """Environments of one pool, all stepped by one call.

    The time limit is counted here: at the last step before its limit, EnvPool reports an episode that terminates as
    truncated.
    """

    def __init__(
        self,
        name: str,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        num_envs: int,
        num_threads: int,
        max_episode_steps: int | None,
    ) -> None:
        self.num_envs = num_envs
        self.observation_space, self.action_space = observation_space, action_space
        self._name, self._threads = name, num_threads
        self._max_steps = max_episode_steps or _ENDLESS
        self._pool: Any = None
        self._seeds: list[int] = []
        self._action_dtype: Any = None
        self._steps = np.zeros(num_envs, np.int64)
        self._returns = np.zeros(num_envs)  # of the episodes in progress

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        self.close()
        self._seeds = [int(seed) for seed in seeds]
        self._pool, self._action_dtype = open_pool(self._name, seeds, self._threads, max_episode_steps=_ENDLESS)
        self._steps[:] = 0
        self._returns[:] = 0.0
        obs, _ = self._pool.reset()
        return self._checked_obs(obs, "observation in reset"), None

    def step(self, actions: np.ndarray) -> StepBatch:
        if self._pool is None:
            raise RuntimeError("reset the environments first")
        # EnvPool gives new arrays at every step.
        values, reward, terminated, _, _ = self._pool.step(np.asarray(actions, self._action_dtype))
        obs = final_obs = self._checked_obs(values, "observation")
        self._check(reward, "reward")
        self._steps += 1
        self._returns += reward
        truncated = self._steps >= self._max_steps
        ended = terminated | truncated
        if not ended.any():
            return StepBatch(obs, reward, terminated, truncated, final_obs, None, [])
        rows = np.flatnonzero(ended)
        episodes = [Episode(int(row), float(self._returns[row]), int(self._steps[row])) for row in rows]
        self._steps[rows], self._returns[rows] = 0, 0.0
        first, _ = self._pool.reset(rows.astype(np.int32))
        obs = final_obs.copy()
        obs[rows] = self._checked_obs(first, "observation in reset")
        return StepBatch(obs, reward, terminated, truncated, final_obs, None, episodes)

    def _checked_obs(self, values: Any, what: str) -> np.ndarray:
        array = np.asarray(values, self.observation_space.dtype)
        self._check(array, what)
        return array

    def _check(self, array: np.ndarray, what: str) -> None:
        """Raise an error for NaN or infinity."""
        found = non_finite_row(array)
        if found is not None:
            row = found[0]
            raise NonFiniteError(
                f"environment {row} (seed {self._seeds[row]}) of EnvPool gave NaN or infinity as {what}; use another "
                "execution_backend, or scale the actions"
            )

    def state_dict(self) -> dict[str, Any] | None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise CheckpointError(
            "environments of EnvPool cannot be restored; resume with the execution_backend of the run"
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
