"""Checks of what an environment returns, with error messages that name the repair.

NumPy would silently broadcast a wrong shape and truncate fractions, so every observation is checked.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.arrays import all_finite, holds_dtype
from rl_training.envs.step import Obs

logger = logging.getLogger("rl_training")

_RESET_REPAIR = "write `def reset(self, *, seed=None, options=None)` that returns (observation, info)"
_STEP_REPAIR = "return (observation, reward, terminated, truncated, info)"
_COUNTED = (gym.spaces.Discrete, gym.spaces.MultiDiscrete)


class BrokenContract(Exception):
    """An environment returned an invalid result; the slot adds which environment it was, and when."""

    def __init__(self, fault: str, repair: str) -> None:
        super().__init__(fault, repair)
        self.fault, self.repair = fault, repair


def check_observation(obs: Any, space: gym.Space[Any]) -> None:
    """Raise an error if an observation differs from its space in shape, kind of numbers or keys."""
    if not isinstance(space, gym.spaces.Dict):
        _check_array(obs, space)
        return
    wanted = ", ".join(space.spaces)
    if not isinstance(obs, dict):
        fault = f"gave a {type(obs).__name__} as observation"
        raise BrokenContract(fault, f"its observation space is a Dict with the keys {wanted}: repair one of the two")
    if obs.keys() != space.spaces.keys():
        raise BrokenContract(
            f"gave an observation with the keys {', '.join(map(str, obs)) or 'none'}",
            f"its observation space has the keys {wanted}: repair one of the two",
        )
    for key, part in space.spaces.items():
        _check_array(obs[key], part, f" `{key}`")


def _check_array(value: Any, space: gym.Space[Any], name: str = "") -> None:
    if type(value) is np.ndarray and value.dtype is space.dtype and value.shape == space.shape:
        array = value
    else:
        array = _fitting_array(value, space, name)
    if isinstance(space, _COUNTED) and not space.contains(array):
        raise BrokenContract(
            f"gave the observation{name} {array.tolist()}", f"its observation space says {space}: repair one of the two"
        )


def _fitting_array(value: Any, space: gym.Space[Any], name: str) -> Any:
    """Return an observation as an array of its space's dtype."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise BrokenContract(
            f"gave an observation{name} that is no array ({error})", "repair what it returns"
        ) from None
    if array.shape != space.shape:
        raise BrokenContract(
            f"gave an observation{name} of shape {array.shape}",
            f"its observation space says {space.shape}: repair one of the two",
        )
    wanted = np.dtype(space.dtype)
    if not holds_dtype(wanted, array.dtype):
        raise BrokenContract(
            f"gave an observation{name} of {array.dtype}",
            f"its observation space says {wanted}, which would lose what it means: repair one of the two",
        )
    return array.astype(wanted) if array.ndim else wanted.type(array)


class MaskCheck:
    """Checks whether an action mask leaves a legal action."""

    def __init__(self, space: gym.Space[Any]) -> None:
        # A MultiBinary action without any legal bit still exists: all zeros.
        self._always = isinstance(space, gym.spaces.MultiBinary)
        self._starts: np.ndarray | None = None
        if isinstance(space, gym.spaces.MultiDiscrete):
            self._starts = np.concatenate(([0], np.cumsum(space.nvec.flatten())[:-1]))

    def __call__(self, mask: np.ndarray) -> bool:
        """Return whether every variable has a legal choice."""
        if self._starts is not None:
            return bool(np.logical_or.reduceat(mask, self._starts).all())
        return self._always or bool(mask.any())


def plain_reward(reward: Any, *, warn: bool = True) -> float:
    """Return a reward as a float; an array of one element is accepted, with one warning."""
    if isinstance(reward, int | float | np.floating | np.integer):
        return float(reward)
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "fiub":
        given = f"a reward of shape {array.shape}" if array.dtype.kind in "fiub" else f"{reward!r:.60} as reward"
        raise BrokenContract(f"gave {given}", "let step return a single number")
    if array.ndim and warn:
        _warn_once(
            f"the environment gives its reward as an array of shape {array.shape}, which is taken as the number it "
            "holds; let step return a number"
        )
    return float(array.item())


def plain_flag(flag: Any, name: str) -> bool:
    """Return `terminated` or `truncated` as a bool; an array of one element is accepted."""
    array = np.asarray(flag)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise BrokenContract(f"gave {flag!r:.60} as {name}", "let step return True or False")
    return bool(array.item())


def check_info(info: Any) -> None:
    """Raise an error if `info` is not a dict."""
    if not isinstance(info, dict):
        raise BrokenContract(f"gave {info!r:.60} as info", "return a dict, {} if it is empty")


def check_reset(result: Any) -> None:
    """Raise an error for anything but an observation and an info, such as the bare observation of the old Gym."""
    if not isinstance(result, tuple) or len(result) != 2:
        given = f"{len(result)} values" if isinstance(result, tuple) else f"a lone {type(result).__name__}"
        raise BrokenContract(f"returned {given} from reset", f"{_RESET_REPAIR}, as Gymnasium asks")


def explain_failure(error: Exception) -> BrokenContract | None:
    """Return the fault if an error is caused by the interface of the old Gym, else None."""
    text = str(error)
    if isinstance(error, TypeError) and "reset() got an unexpected keyword argument" in text:
        return BrokenContract("has a reset that does not take what Gymnasium gives it", f"{_RESET_REPAIR} ({text})")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    # If the failed unpacking is in Gymnasium or in this package, the unpacked value came from the environment.
    if place.startswith(("gymnasium.", "rl_training.")) and "unpack" in text:
        if isinstance(error, ValueError) and "(expected 2" in text:
            return BrokenContract("did not return two values from reset", f"{_RESET_REPAIR}, as Gymnasium asks")
        if isinstance(error, ValueError) and "(expected 5" in text:
            return BrokenContract(
                f"did not return five values from step ({text})",
                f"{_STEP_REPAIR}, as Gymnasium asks: `done` of the old Gym is two flags here",
            )
        if isinstance(error, TypeError) and "non-iterable" in text:
            return BrokenContract(f"returned no tuple from step ({text})", f"{_STEP_REPAIR}, as Gymnasium asks")
    return None


def non_finite_row(batch: Obs) -> tuple[int, str] | None:
    """Return the first row of a batch with NaN or infinity, and ` `key`` for a Dict; None if all are finite."""
    for key, column in batch.items() if isinstance(batch, dict) else (("", batch),):
        if not all_finite(column):
            return int(np.argwhere(~np.isfinite(column))[0][0]), f" `{key}`" if key else ""
    return None


@cache
def _warn_once(sentence: str) -> None:
    logger.warning("%s", sentence)
