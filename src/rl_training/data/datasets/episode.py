"""One recorded episode, and checks that it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.envs.arrays import all_finite, holds_dtype

if TYPE_CHECKING:
    from rl_training.data.observations import NumpyObservation

LOG_PROB = "log_prob"
"""Name of the info with the behaviour's log-probability of each action, [T]."""
ACTION_MASK = "action_mask"
"""Name of the info with the valid actions at each observation, [T + 1, choices]."""


@dataclass(frozen=True)
class Episode:
    """One episode of T steps; it has T + 1 observations, the last of which is its true final one."""

    observations: NumpyObservation  # [T + 1, ...]
    actions: np.ndarray  # [T, ...]
    rewards: np.ndarray  # [T]
    terminations: np.ndarray  # [T] bool
    truncations: np.ndarray  # [T] bool
    infos: dict[str, np.ndarray]  # [T, ...] or [T + 1, ...]
    seed: int | None

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.rewards)

    @property
    def episode_return(self) -> float:
        """Sum of the rewards."""
        return float(self.rewards.sum(dtype=np.float64))


def parts_of(observation: NumpyObservation) -> dict[str, np.ndarray]:
    """Return the arrays of an observation with what they are called in messages."""
    if isinstance(observation, dict):
        return {f"observations of `{key}`": array for key, array in observation.items()}
    return {"observations": observation}


def spaces_of(space: Space[Any]) -> dict[str, Space[Any]]:
    """Return the spaces of an observation's arrays, named as by `parts_of`."""
    if isinstance(space, spaces.Dict):
        return {f"observations of `{key}`": part for key, part in space.items()}
    return {"observations": space}


def faults_of(episode: Episode, observation_space: Space[Any], action_space: Space[Any]) -> Iterator[str]:
    """Return everything that makes an episode unusable, each as a clause that names the array."""
    steps = episode.steps
    if steps == 0:
        yield "it has no steps"
        return
    arrays = parts_of(episode.observations)
    for name, space in spaces_of(observation_space).items():
        yield from _array_faults(name, arrays[name], space, steps + 1)
    yield from _array_faults("actions", episode.actions, action_space, steps)
    if episode.rewards.ndim != 1:
        yield f"the rewards have shape {episode.rewards.shape}"
    elif not all_finite(episode.rewards):
        yield "the rewards hold NaN or infinity"
    for name, flags in (("terminations", episode.terminations), ("truncations", episode.truncations)):
        if flags.shape != (steps,):
            yield f"the {name} have shape {flags.shape}, and there are {steps} rewards"
        elif flags[:-1].any():
            yield f"the {name} say that it ended at step {int(np.argmax(flags[:-1])) + 1} of {steps}"


def oddities_of(episode: Episode, observation_space: Space[Any], action_space: Space[Any]) -> Iterator[str]:
    """Return what is unusual in an episode without faults, each as a clause."""
    if not (episode.terminations[-1] or episode.truncations[-1]):
        yield "it was cut off: its last step is neither a termination nor a truncation"
    arrays = {**parts_of(episode.observations), "actions": episode.actions}
    for name, space in {**spaces_of(observation_space), "actions": action_space}.items():
        if isinstance(space, spaces.Box) and ((arrays[name] < space.low) | (arrays[name] > space.high)).any():
            yield f"the {name} lie outside of the bounds of their space"


def _array_faults(name: str, array: np.ndarray, space: Space[Any], rows: int) -> Iterator[str]:
    expected = (rows, *(space.shape or ()))
    if array.shape != expected:
        yield f"the {name} have shape {array.shape} where {expected} is needed"
    elif not holds_dtype(np.dtype(space.dtype), array.dtype):
        yield f"the {name} are of {array.dtype} where {space.dtype} is needed"
    elif not all_finite(array):
        yield f"the {name} hold NaN or infinity"
    elif not _within(array, space):
        yield f"the {name} hold a number beyond their space, {space}"


def _within(array: np.ndarray, space: Space[Any]) -> bool:
    """Return whether choices exist; the bounds of a Box are not enforced."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return bool(((array >= space.start) & (array < space.start + count)).all())
    if isinstance(space, spaces.MultiBinary):
        return bool(((array == 0) | (array == 1)).all())
    return True
