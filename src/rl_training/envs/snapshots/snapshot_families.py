"""State of base environments whose attributes are all known, by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Family(NamedTuple):
    """Functions that read and write the environments of one family; the caller saves their generator."""

    take: Callable[[Any], dict[str, Any]]
    put: Callable[[Any, dict[str, Any]], None]
    has_generator: bool = False
    """Whether the environment's generator is part of the state."""


def find_family(env: Any) -> Family | None:
    """Return the family of a base environment by its exact class: a subclass may have more state."""
    kind = type(env)
    module, name = kind.__module__, kind.__qualname__
    if name in _ATTRIBUTES.get(module, {}):
        if name == "FrozenLakeEnv" and _has_random_map(env):
            return None
        return _attribute_family(_ATTRIBUTES[module][name])
    if module.startswith("gymnasium.envs.mujoco."):
        return _MUJOCO
    if (module, name) == ("ale_py.env", "AtariEnv"):
        return None if _has_sticky_actions(env) else _ATARI
    packages = graph_packages(module)
    return None if packages is None else _graph_family(packages)


# Packages whose environments are Python objects all the way down, with the packages that these objects come from.
_GRAPH_PACKAGES = {
    "gymnasium_robotics": frozenset({"gymnasium_robotics", "gymnasium"}),
    "highway_env": frozenset({"highway_env"}),
    "minigrid": frozenset({"minigrid"}),
    "popgym": frozenset({"popgym"}),
    "shimmy": frozenset({"shimmy", "dm_control"}),
}


def graph_packages(module: str) -> frozenset[str] | None:
    """Return the packages of a module's objects if `object_graph` can save them."""
    return _GRAPH_PACKAGES.get(module.partition(".")[0])


def _graph_family(packages: frozenset[str]) -> Family:
    from rl_training.envs.snapshots.object_graph import put_graph, take_graph

    return Family(
        lambda env: take_graph(env, packages), lambda env, state: put_graph(env, state, packages), has_generator=True
    )


# Only attributes that affect later steps, without constants and rendering surfaces.
_ATTRIBUTES: dict[str, dict[str, tuple[str, ...]]] = {
    "gymnasium.envs.classic_control.cartpole": {"CartPoleEnv": ("state", "steps_beyond_terminated")},
    "gymnasium.envs.classic_control.acrobot": {"AcrobotEnv": ("state",)},
    "gymnasium.envs.classic_control.mountain_car": {"MountainCarEnv": ("state",)},
    "gymnasium.envs.classic_control.continuous_mountain_car": {"Continuous_MountainCarEnv": ("state",)},
    "gymnasium.envs.classic_control.pendulum": {"PendulumEnv": ("state", "last_u")},
    "gymnasium.envs.toy_text.frozen_lake": {"FrozenLakeEnv": ("s", "lastaction")},
    "gymnasium.envs.toy_text.cliffwalking": {"CliffWalkingEnv": ("s", "lastaction")},
    "gymnasium.envs.toy_text.taxi": {"TaxiEnv": ("s", "lastaction", "fickle_step", "taxi_orientation")},
    "gymnasium.envs.toy_text.blackjack": {
        "BlackjackEnv": ("dealer", "player", "dealer_top_card_suit", "dealer_top_card_value_str")
    },
}


def _attribute_family(names: tuple[str, ...]) -> Family:
    def take(env: Any) -> dict[str, Any]:
        # An attribute may not exist before the first reset.
        return {name: _to_plain(getattr(env, name)) for name in names if hasattr(env, name)}

    def put(env: Any, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(env, name, value.copy() if isinstance(value, np.ndarray) else value)

    return Family(take, put)


def _to_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_plain(part) for part in value]
    if isinstance(value, (np.ndarray, tuple)):
        # The dtype is kept: MountainCarContinuous computes in float32 after its first step.
        return np.array(value)
    return value.item() if isinstance(value, np.generic) else value


def _has_random_map(env: Any) -> bool:
    """Return whether this is a FrozenLake without a given map: it draws one from a generator that cannot be seeded."""
    kwargs = env.spec.kwargs if env.spec is not None else {}
    return kwargs.get("desc") is None and kwargs.get("map_name", "4x4") is None


def _has_sticky_actions(env: Any) -> bool:
    """Return whether sticky actions are on: the emulator's state lacks the last action, which they may repeat."""
    return bool(env.ale.getFloat("repeat_action_probability") > 0)


# Positions that MuJoCo computes inside a step, one sub-step behind the state: some environments read them before the
# next step (Ant and Humanoid for the distance covered), so that the state alone is not enough.
_MUJOCO_LAGGING = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat"),
    *("subtree_com", "cinert", "cvel", "cfrc_ext", "qfrc_actuator", "qfrc_constraint", "qacc"),
)


def _take_mujoco(env: Any) -> dict[str, Any]:
    import mujoco

    signature = mujoco.mjtState.mjSTATE_INTEGRATION
    physics = np.empty(mujoco.mj_stateSize(env.model, signature), dtype=np.float64)
    mujoco.mj_getState(env.model, env.data, physics, signature)
    return {
        "physics": physics,
        "lagging": {name: np.array(getattr(env.data, name)) for name in _MUJOCO_LAGGING},
    }


def _put_mujoco(env: Any, state: dict[str, Any]) -> None:
    import mujoco

    signature = mujoco.mjtState.mjSTATE_INTEGRATION
    # No mj_forward afterwards: it would update the positions that have to lag behind.
    mujoco.mj_setState(env.model, env.data, np.asarray(state["physics"]), signature)
    for name, value in state["lagging"].items():
        getattr(env.data, name)[...] = value


def _take_atari(env: Any) -> dict[str, Any]:
    emulator = env.ale.cloneState(include_rng=True)
    return {"emulator": np.frombuffer(emulator.__getstate__(), dtype=np.uint8).copy()}


def _put_atari(env: Any, state: dict[str, Any]) -> None:
    import ale_py

    # The binding only fills an instance that was not initialised.
    emulator: Any = ale_py.ALEState.__new__(ale_py.ALEState)
    emulator.__setstate__(np.asarray(state["emulator"], dtype=np.uint8).tobytes())
    env.ale.restoreState(emulator)


_MUJOCO = Family(_take_mujoco, _put_mujoco)
_ATARI = Family(_take_atari, _put_atari)
