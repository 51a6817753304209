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


def _line(
    name: str, module: str, trainer: str, params: str, algorithm: str, actions: tuple[str, ...], summary: str
) -> AlgorithmSpec:
    """Return a stable algorithm that takes every observation."""
    return AlgorithmSpec(
        name=name,
        train=f"rl_training.runtime.{trainer}_trainer:train_{trainer}",
        params=f"rl_training.algorithms.{module}:{params}",
        algorithm=f"rl_training.algorithms.{module}:{algorithm}",
        observation_spaces=("vector", "image", "dict"),
        action_spaces=actions,
        tier="stable",
        summary=summary,
    )


_EVERY_ACTION = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")
_DISCRETE = ("Discrete",)
_BOX = ("Box",)

ALGORITHMS: dict[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        _line(
            "a2c",
            "ppo",
            "ppo",
            "A2CParams",
            "PPO",
            _EVERY_ACTION,
            "Advantage actor-critic: one plain policy-gradient step per short rollout.",
        ),
        _line("c51", "dqn", "dqn", "C51Params", "DQN", _DISCRETE, "DQN with a categorical distribution of returns."),
        _line(
            "ddpg",
            "td3",
            "td3",
            "DDPGParams",
            "TD3",
            _BOX,
            "Deep deterministic policy gradient: TD3 with one critic, no delay, no smoothing.",
        ),
        _line(
            "discrete_sac",
            "discrete_sac",
            "sac",
            "DiscreteSACParams",
            "DiscreteSAC",
            _DISCRETE,
            "Soft actor-critic for discrete actions.",
        ),
        _line(
            "double_dqn",
            "dqn",
            "dqn",
            "DoubleDQNParams",
            "DQN",
            _DISCRETE,
            "DQN whose online network chooses the successor's action.",
        ),
        _line("dqn", "dqn", "dqn", "DQNParams", "DQN", _DISCRETE, "Deep Q-learning, with its extensions as options."),
        _line(
            "ppo",
            "ppo",
            "ppo",
            "PPOParams",
            "PPO",
            _EVERY_ACTION,
            "Proximal policy optimisation: several clipped epochs per rollout.",
        ),
        _line("qr_dqn", "dqn", "dqn", "QRDQNParams", "DQN", _DISCRETE, "DQN with quantiles of the return."),
        _line("rainbow", "dqn", "dqn", "RainbowParams", "DQN", _DISCRETE, "DQN with all six extensions together."),
        _line(
            "sac",
            "sac",
            "sac",
            "SACParams",
            "SAC",
            _BOX,
            "Soft actor-critic: maximum entropy with a learned temperature.",
        ),
        _line("td3", "td3", "td3", "TD3Params", "TD3", _BOX, "Twin delayed deep deterministic policy gradient."),
        _line("tqc", "sac", "sac", "TQCParams", "SAC", _BOX, "Soft actor-critic with truncated quantile critics."),
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
