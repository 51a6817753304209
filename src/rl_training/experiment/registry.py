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

    many_tasks: bool = False
    """Whether it learns a suite of tasks (`env_kwargs.tasks`); its spaces are then Dicts with one entry per task."""

    def load_train(self) -> Callable[..., Any]:
        """Import and return the train function."""
        return _load(self.train)

    def load_params(self) -> type:
        """Import and return the parameter dataclass."""
        return _load(self.params)

    def load_algorithm(self) -> Callable[..., Any]:
        """Import and return the algorithm's class."""
        return _load(self.algorithm)


# An algorithm becomes stable when its learning bars are met over several seeds and stored in benchmarks/results.
_STABLE = ("a2c", "discrete_sac", "dqn", "ppo", "qr_dqn", "sac", "td3")


def _family(
    algorithm: str,
    trainer: str,
    actions: tuple[str, ...],
    members: dict[str, tuple[str, str]],
    *,
    params_module: str | None = None,
    many_tasks: bool = False,
) -> list[AlgorithmSpec]:
    """Return the algorithms of one class, which are sets of its parameters: name -> (dataclass, summary)."""
    module = params_module or algorithm.partition(":")[0]
    return [
        AlgorithmSpec(
            name=name,
            train=f"rl_training.runtime.{trainer}_trainer:train_{trainer}",
            params=f"rl_training.algorithms.{module}:{params}",
            algorithm=f"rl_training.algorithms.{algorithm}",
            observation_spaces=("vector", "image", "dict"),
            action_spaces=actions,
            tier="stable" if name in _STABLE else "experimental",
            summary=summary,
            many_tasks=many_tasks,
        )
        for name, (params, summary) in members.items()
    ]


_POLICY_GRADIENT = {
    "ppo": ("PPOParams", "Proximal policy optimisation: several clipped epochs per rollout."),
    "a2c": ("A2CParams", "Advantage actor-critic: one plain policy-gradient step per short rollout."),
}
_Q_LEARNING = {
    "dqn": ("DQNParams", "Deep Q-learning, with its extensions as options."),
    "double_dqn": ("DoubleDQNParams", "DQN whose online network chooses the successor's action."),
    "c51": ("C51Params", "DQN with a categorical distribution of returns."),
    "qr_dqn": ("QRDQNParams", "DQN with quantiles of the return."),
    "rainbow": ("RainbowParams", "DQN with all six extensions together."),
}
_SOFT = {
    "sac": ("SACParams", "Soft actor-critic: maximum entropy with a learned temperature."),
    "tqc": ("TQCParams", "Soft actor-critic with truncated quantile critics."),
    "crossq": ("CrossQParams", "Soft actor-critic with batch normalisation and without target networks."),
}
_SOFT_DISCRETE = {"discrete_sac": ("DiscreteSACParams", "Soft actor-critic for discrete actions.")}
_DETERMINISTIC = {
    "td3": ("TD3Params", "Twin delayed deep deterministic policy gradient."),
    "ddpg": ("DDPGParams", "Deep deterministic policy gradient: TD3 with one critic, no delay, no smoothing."),
}
_PLANNING = {
    "muzero": ("MuZeroParams", "Plans with a learned model by tree search."),
    "gumbel_muzero": ("GumbelMuZeroParams", "MuZero whose search halves the candidates; needs few simulations."),
    "efficientzero": ("EfficientZeroParams", "MuZero with a value prefix, consistency and off-policy correction."),
}
_MANY_TASKS = {"scalezero": ("ScaleZeroParams", "One planning model for many tasks: experts, staged adapters.")}

ALGORITHMS: dict[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        *_family(
            "ppo:PPO",
            "ppo",
            ("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
            _POLICY_GRADIENT,
            params_module="ppo_params",
        ),
        *_family("dqn:DQN", "dqn", ("Discrete",), _Q_LEARNING),
        *_family("sac:SAC", "sac", ("Box",), _SOFT),
        *_family("discrete_sac:DiscreteSAC", "sac", ("Discrete",), _SOFT_DISCRETE),
        *_family("td3:TD3", "td3", ("Box",), _DETERMINISTIC),
        *_family("muzero:MuZero", "muzero", ("Discrete",), _PLANNING, params_module="muzero_params"),
        *_family(
            "scalezero:ScaleZero",
            "scalezero",
            ("Discrete",),
            _MANY_TASKS,
            params_module="scalezero_params",
            many_tasks=True,
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
