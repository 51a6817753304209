"""The complete state of a MuJoCo simulation, wherever an environment keeps it, as plain data."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_PHYSICS = ("dm_control.mujoco.engine", "Physics")
# Arrays of a model that no task changes, and that may be large.
_FIXED = ("mesh", "tex", "hfield", "skin", "flex", "names", "text", "bvh", "oct", "plugin", "paths")


def find_simulation(value: Any) -> tuple[Any, Any] | None:
    """Return the model and the data of a MuJoCo simulation, None for any other object."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is None:
        return None
    if isinstance(value, mujoco.MjData):
        return value.model, value
    if any((base.__module__, base.__qualname__) == _PHYSICS for base in type(value).__mro__):
        return value.model.ptr, value.data.ptr
    return None


def take_simulation(model: Any, data: Any) -> dict[str, Any]:
    """Return all numbers of a simulation: tasks change the model too, as by moving a target."""
    import mujoco

    signature = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, signature), dtype=np.float64)
    mujoco.mj_getState(model, data, state, signature)
    data_arrays = _arrays(data, _lasting_names(model))
    return {"state": state, "data": _joined(data_arrays), "model": _joined(_arrays(model, _model_names(model)))}


def put_simulation(model: Any, data: Any, saved: dict[str, Any]) -> None:
    """Restore a simulation in place."""
    import mujoco

    _split(saved["model"], _arrays(model, _model_names(model)))
    mujoco.mj_setState(model, data, np.asarray(saved["state"]), mujoco.mjtState.mjSTATE_INTEGRATION)
    # Contacts and constraints are not saved. dm_control uses them before it computes them again.
    mujoco.mj_step1(model, data)
    _split(saved["data"], _arrays(data, _lasting_names(model)))


def _lasting_names(model: Any) -> list[str]:
    """Return the arrays of a simulation whose size does not change with the number of contacts."""
    import mujoco

    return _array_names(mujoco.MjData(model))  # it has no contacts yet, so that their arrays are empty


def _model_names(model: Any) -> list[str]:
    return [name for name in _array_names(model) if not name.startswith(_FIXED)]


def _array_names(owner: Any) -> list[str]:
    """Return the names of all arrays of numbers that are not empty, in alphabetical order."""
    found = []
    for name in sorted(dir(owner)):
        value = None if name.startswith("_") else getattr(owner, name)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.flags.writeable and value.size:
            found.append(name)
    return found


def _arrays(owner: Any, names: list[str]) -> list[np.ndarray]:
    return [getattr(owner, name) for name in names]


def _joined(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return one array for each type of number."""
    kinds = sorted({array.dtype.str for array in arrays})
    return {kind: np.concatenate([array.ravel() for array in arrays if array.dtype.str == kind]) for kind in kinds}


def _split(joined: dict[str, np.ndarray], arrays: list[np.ndarray]) -> None:
    ends = dict.fromkeys(joined, 0)
    for array in arrays:
        kind = array.dtype.str
        start, ends[kind] = ends[kind], ends[kind] + array.size
        array[...] = joined[kind][start : ends[kind]].reshape(array.shape)
    if any(ends[kind] != len(numbers) for kind, numbers in joined.items()):
        raise ValueError("the simulation has another size")
