"""Checks of arrays, by NumPy alone: exported policies use them where neither torch nor Gymnasium is installed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.errors import AxiomError

_FEW = 64


def holds_dtype(wanted: np.dtype[Any], given: np.dtype[Any]) -> bool:
    """Return whether numbers of one type can be stored as the other; fractions cannot be stored as integers."""
    return given.kind in ("fiub" if wanted.kind == "f" else "iub")


def all_finite(array: np.ndarray) -> bool:
    """Return whether an array has neither NaN nor infinity."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    if flat.size <= _FEW:  # a sum of Python's floats is faster than a call of NumPy
        return math.isfinite(sum(flat.tolist())) or bool(np.isfinite(array).all())
    # The dot product with itself is the fastest sum; if it overflows, all elements are checked.
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(array).all())


def as_batch(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str = "") -> tuple[np.ndarray, bool]:
    """Return an observation as a batch [B, *shape] of `dtype`, and whether it was a single one."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise AxiomError(f"the observation{name} cannot be read as an array of {dtype}: {error}") from error
    if not holds_dtype(dtype, array.dtype):
        raise AxiomError(f"the observation{name} is of {array.dtype}; the policy expects {dtype}")
    single = array.shape == shape
    if not single and not (array.shape[1:] == shape and array.ndim == len(shape) + 1):
        raise AxiomError(
            f"the observation{name} has shape {array.shape}; the policy expects {shape}, or a batch (n, *{shape})"
        )
    array = array.astype(dtype, copy=False)
    if not all_finite(array):
        raise AxiomError(f"the observation{name} holds NaN or infinity; give finite numbers")
    return array[np.newaxis] if single else array, single


def as_mask(value: Any, width: int, rows: int, *, single: bool) -> np.ndarray:
    """Return the action mask of every row, [rows, width]."""
    mask = np.asarray(value, dtype=bool)
    expected = (width,) if single else (rows, width)
    if mask.shape != expected:
        raise AxiomError(f"the action mask has shape {mask.shape}; this policy and observation need {expected}")
    return mask.reshape(rows, -1)


def as_memory(state: Any, episode_start: Any, size: int, rows: int, *, single: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the memories [rows, size] that a policy was given, and in which rows an episode starts [rows].

    None stands for the start of every episode, and for none of them.
    """
    starts = np.full(rows, state is None)
    memory = np.zeros((rows, size), np.float32) if state is None else np.asarray(state, np.float32)
    if memory.shape != ((size,) if single and state is not None else (rows, size)):
        raise AxiomError(f"the state has the shape {memory.shape}; give back what predict returned last")
    if not all_finite(memory):
        raise AxiomError("the state holds NaN or infinity; give back what predict returned last")
    if episode_start is not None:
        given = np.asarray(episode_start, bool).reshape(-1)
        if len(given) not in (1, rows):
            raise AxiomError(f"episode_start has {len(given)} entries for {rows} observations; give one for each")
        starts = starts | given
    return memory.reshape(rows, size), starts
