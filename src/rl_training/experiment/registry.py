"""The algorithms there are. Modules are named as text and imported on use, so that listing is instant."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rl_training.errors import ConfigError, did_you_mean

Tier = Literal["stable", "experimental", "contrib"]


@dataclass(frozen=True)
class AlgorithmSpec:
    """One line of the registry: everything a caller needs to run an algorithm without knowing its name."""

    name: str
    """What `algo:` in a config says."""

    train: str
    """`module:function` with `(config, *, callbacks=(), checkpoint=None) -> TrainResult`."""

    params: str
    """`module:Class` of the parameter dataclass that `algo_kwargs` is checked against."""

    algorithm: str
    """`module:Class` that acts and learns, built from parameters and a pair of spaces."""

    observation_spaces: tuple[str, ...]
    """Kinds of observation it accepts: vector, image, dict."""

    action_spaces: tuple[str, ...]
    """Gymnasium action spaces it accepts."""

    tier: Tier
    """How stable its interface is (docs/compatibility.md)."""

    summary: str
    """One line for `axiomrl algos`."""

    def load_train(self) -> Callable[..., Any]:
        """Import and return the train function."""
        return _load(self.train)

    def load_params(self) -> type:
        """Import and return the parameter dataclass."""
        return _load(self.params)

    def load_algorithm(self) -> Callable[..., Any]:
        """Import and return the algorithm's class."""
        return _load(self.algorithm)


_EVERY_OBSERVATION = ("vector", "image", "dict")
_EVERY_ACTION = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")

ALGORITHMS: dict[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        AlgorithmSpec(
            name="a2c",
            train="rl_training.runtime.ppo_trainer:train_ppo",
            params="rl_training.algorithms.ppo:A2CParams",
            algorithm="rl_training.algorithms.ppo:PPO",
            observation_spaces=_EVERY_OBSERVATION,
            action_spaces=_EVERY_ACTION,
            tier="stable",
            summary="Advantage actor-critic: one plain policy-gradient step per short rollout.",
        ),
        AlgorithmSpec(
            name="ppo",
            train="rl_training.runtime.ppo_trainer:train_ppo",
            params="rl_training.algorithms.ppo:PPOParams",
            algorithm="rl_training.algorithms.ppo:PPO",
            observation_spaces=_EVERY_OBSERVATION,
            action_spaces=_EVERY_ACTION,
            tier="stable",
            summary="Proximal policy optimisation: several clipped epochs per rollout.",
        ),
    )
}


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """Return the algorithm called `name`; an unknown name suggests the nearest ones."""
    if name not in ALGORITHMS:
        raise ConfigError(unknown_algorithm(name))
    return ALGORITHMS[name]


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """Return every algorithm, ordered by name."""
    return [ALGORITHMS[name] for name in list_algorithms()]


def list_algorithms() -> list[str]:
    """Return the names of the algorithms in alphabetical order."""
    return sorted(ALGORITHMS)


def unknown_algorithm(name: str) -> str:
    """Return the sentence for a name that is not in the registry."""
    hint = did_you_mean(name, ALGORITHMS) or f"; known algorithms: {', '.join(list_algorithms())}"
    return f"unknown algorithm `{name}`{hint}"


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
