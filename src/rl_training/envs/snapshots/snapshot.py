"""The complete state of an environment as plain values, so that a new environment continues identically.

`take` goes through the wrappers down to the base environment. If any of them is unknown, the whole snapshot is None: an
incompletely restored environment would silently change a resumed run.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

from rl_training.envs.snapshots.generators import generator_from_state, generator_state
from rl_training.envs.snapshots.object_graph import Unsavable, put_graph, take_graph
from rl_training.envs.snapshots.snapshot_families import find_family, graph_packages
from rl_training.envs.step import copy_obs
from rl_training.errors import CheckpointError, EnvironmentFailure

AnyEnv = gym.Env[Any, Any]
logger = logging.getLogger("rl_training")


class _Access(NamedTuple):
    """Functions that read and write the state of one kind of layer."""

    take: Callable[[Any], dict[str, Any]]
    put: Callable[[Any, dict[str, Any]], None]
    has_generator: bool = False
    """Whether the state contains the environment's generator."""


def take(env: AnyEnv) -> dict[str, Any] | None:
    """Return NumPy arrays and JSON values in nested dicts and lists, or None if a part is unknown."""
    try:
        return _take_layers(env)
    except Unsavable as error:
        logger.debug("%s cannot be saved: %s", env, error)
        return None


def _take_layers(env: AnyEnv) -> dict[str, Any] | None:
    layers: list[dict[str, Any]] = []
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        access = _wrapper_access(layer)
        if access is None:
            return None
        layers.append({"type": _type_name(layer), "state": access.take(layer)})
        layer = layer.env
    access = _base_access(layer)
    if access is None:
        return None
    generator = None if access.has_generator else _take_generator(layer)
    base = {"type": _type_name(layer), "state": access.take(layer), "generator": generator}
    return {"wrappers": layers, "base": base}


def put(env: AnyEnv, state: dict[str, Any]) -> None:
    """Restore `state` in an environment that was made like the saved one."""
    layer: Any = env
    for saved in state["wrappers"]:
        access = _wrapper_access(layer) if isinstance(layer, gym.Wrapper) else None
        _expect(layer, saved, access)
        assert access is not None
        access.put(layer, saved["state"])
        layer = layer.env
    base = state["base"]
    access = None if isinstance(layer, gym.Wrapper) else _base_access(layer)
    _expect(layer, base, access)
    assert access is not None
    access.put(layer, base["state"])
    if not access.has_generator:
        _put_generator(layer, base["generator"])


def _wrapper_access(layer: AnyEnv) -> _Access | None:
    own = _own_state_access(layer)
    if own is not None:
        return own
    # By the name of the exact type: a subclass may have more state.
    known = _WRAPPERS.get(_type_name(layer))
    packages = None if known is not None else graph_packages(type(layer).__module__)
    return known if packages is None else _graph_access(packages)


def _graph_access(packages: frozenset[str]) -> _Access:
    """Return the access to a wrapper of a package whose objects can all be saved."""
    inner = frozenset({"env"})
    return _Access(
        lambda layer: take_graph(layer, packages, inner), lambda layer, state: put_graph(layer, state, packages)
    )


def _base_access(env: AnyEnv) -> _Access | None:
    own = _own_state_access(env)
    if own is not None:
        return own
    family = find_family(env)
    return None if family is None else _Access(family.take, family.put, family.has_generator)


def _own_state_access(layer: Any) -> _Access | None:
    """Return the access to a layer that defines `state_dict` and `load_state_dict` itself."""
    if not all(callable(getattr(type(layer), name, None)) for name in ("state_dict", "load_state_dict")):
        return None

    def take_own(env: Any) -> dict[str, Any]:
        state = env.state_dict()
        _check_plain(state, f"{_type_name(env)}.state_dict()")
        return copy_plain(state)

    def put_own(env: Any, state: dict[str, Any]) -> None:
        env.load_state_dict(copy_plain(state))

    return _Access(take_own, put_own)


def copy_plain(value: Any) -> Any:
    """Return a deep copy of plain data."""
    if isinstance(value, dict):
        return {key: copy_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [copy_plain(part) for part in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _check_plain(value: Any, place: str) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise EnvironmentFailure(f"{place} has the key {key!r}: only strings can be saved")
            _check_plain(part, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            _check_plain(part, f"{place}[{index}]")
    elif isinstance(value, np.ndarray):
        if value.dtype == object:
            raise EnvironmentFailure(f"{place} is an array of Python objects: only numbers can be saved")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise EnvironmentFailure(
            f"{place} is a {type(value).__name__}: only numpy arrays and plain values (None, bool, int, "
            "float, str, lists and dicts of them) can be saved"
        )


def _expect(layer: Any, saved: dict[str, Any], access: _Access | None) -> None:
    if access is None or saved["type"] != _type_name(layer):
        raise CheckpointError(
            f"the checkpoint's environment has a `{saved['type']!s:.200}` where this one has a "
            f"`{_type_name(layer)}`: resume with the same environment, wrappers and package versions"
        )


def _type_name(layer: Any) -> str:
    """Return the class of a layer; one of ours whose state is that of another class says so by `saved_as`."""
    kind = type(layer)
    name = kind.__dict__.get("saved_as") if kind.__module__.startswith("rl_training.") else None
    return name or f"{kind.__module__}.{kind.__qualname__}"


def _take_generator(env: Any) -> dict[str, Any] | None:
    if env._np_random is None:
        return None
    return {"state": copy_plain(generator_state(env._np_random)), "seed": env._np_random_seed}


def _put_generator(env: Any, saved: dict[str, Any] | None) -> None:
    env._np_random = None if saved is None else generator_from_state(saved["state"])
    env._np_random_seed = None if saved is None else saved["seed"]


def _attributes(*names: str) -> _Access:
    """Return the access to a wrapper whose state is in attributes with plain values."""

    def take_attributes(layer: Any) -> dict[str, Any]:
        return {name: getattr(layer, name) for name in names}

    def put_attributes(layer: Any, state: dict[str, Any]) -> None:
        for name in names:
            setattr(layer, name, state[name])

    return _Access(take_attributes, put_attributes)


def _take_frame_stack(layer: Any) -> dict[str, Any]:
    return {
        "frames": [copy_obs(frame) for frame in layer.obs_queue],
        "padding": copy_obs(layer.padding_value),
    }


def _put_frame_stack(layer: Any, state: dict[str, Any]) -> None:
    layer.obs_queue = deque((copy_obs(frame) for frame in state["frames"]), maxlen=layer.stack_size)
    layer.padding_value = copy_obs(state["padding"])


def _take_preprocessing(layer: Any) -> dict[str, Any]:
    # The buffers are used if a game ends in the middle of a frame skip.
    buffers = [buffer.copy() for buffer in layer.obs_buffer]
    return {"buffers": buffers, "lives": int(layer.lives), "game_over": bool(layer.game_over)}


def _put_preprocessing(layer: Any, state: dict[str, Any]) -> None:
    for buffer, saved in zip(layer.obs_buffer, state["buffers"], strict=True):
        buffer[...] = saved
    layer.lives, layer.game_over = state["lives"], state["game_over"]


def _skip_checks(layer: Any, state: dict[str, Any]) -> None:
    # It compares the first step with the reset before it, which a restored environment did not have.
    layer.checked_reset = layer.checked_step = layer.checked_data_reuse = True


_WRAPPER_TYPES: dict[type, _Access] = {
    wrappers.TimeLimit: _attributes("_elapsed_steps"),
    wrappers.OrderEnforcing: _attributes("_has_reset"),
    wrappers.FrameStackObservation: _Access(_take_frame_stack, _put_frame_stack),
    wrappers.AtariPreprocessing: _Access(_take_preprocessing, _put_preprocessing),
    wrappers.PassiveEnvChecker: _Access(lambda layer: {}, _skip_checks),
    # These have no state that affects later steps.
    wrappers.ClipAction: _attributes(),
    wrappers.RescaleAction: _attributes(),
    wrappers.FlattenObservation: _attributes(),
    wrappers.FilterObservation: _attributes(),
    wrappers.DtypeObservation: _attributes(),
    wrappers.ReshapeObservation: _attributes(),
    wrappers.RescaleObservation: _attributes(),
    wrappers.ResizeObservation: _attributes(),
    wrappers.GrayscaleObservation: _attributes(),
    wrappers.ClipReward: _attributes(),
}
_WRAPPERS = {f"{kind.__module__}.{kind.__qualname__}": access for kind, access in _WRAPPER_TYPES.items()}
