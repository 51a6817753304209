"""The algorithms there are. Modules are named as text and imported on use, so that listing is instant."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rl_training.errors import ConfigError, did_you_mean

Tier = Literal["stable", "experimental", "contrib"]
Loop = Literal["on_policy", "off_policy", "planning"]


@dataclass(frozen=True)
class AlgorithmSpec:
    """One line of the registry: everything a caller needs to run an algorithm without knowing its name."""

    name: str
    """What `algo:` in a config says."""

    loop: Loop
    """The loop that trains it."""

    params: str | type
    """The parameter dataclass that `algo_kwargs` is checked against, or `module:Class`."""

    algorithm: str | type
    """The class that acts and learns, a subclass of the loop's base in `algorithms.base`, or `module:Class`."""

    action_spaces: tuple[str, ...]
    """Gymnasium action spaces it accepts."""

    summary: str
    """One line for `axiomrl algos`."""

    observation_spaces: tuple[str, ...] = ("vector", "image", "dict")
    """Kinds of observation it accepts."""

    tier: Tier = "contrib"
    """How stable its interface is (docs/compatibility.md)."""

    train: str | None = None
    """`module:function` with `(config, *, callbacks=(), checkpoint=None) -> TrainResult`; the loop's own by default."""

    many_tasks: bool = False
    """Whether it learns a suite of tasks (`env_kwargs.tasks`); its spaces are then Dicts with one entry per task."""

    def load_train(self) -> Callable[..., Any]:
        """Import and return the train function."""
        train: Callable[..., Any] = _load(self.train or f"rl_training.runtime.{self.loop}:train_{self.loop}")
        return train

    def load_params(self) -> type:
        """Import and return the parameter dataclass."""
        params: type = _load(self.params)
        return params

    def load_algorithm(self) -> Callable[..., Any]:
        """Import and return the algorithm's class."""
        algorithm: Callable[..., Any] = _load(self.algorithm)
        return algorithm


# An algorithm becomes stable when its learning bars are met over several seeds and stored in benchmarks/results.
_STABLE = ("a2c", "discrete_sac", "dqn", "ppo", "qr_dqn", "sac", "td3")


def _family(
    loop: Loop,
    algorithm: str,
    actions: tuple[str, ...],
    members: dict[str, tuple[str, str]],
    *,
    params_module: str | None = None,
    train: str | None = None,
    many_tasks: bool = False,
) -> list[AlgorithmSpec]:
    """Return the algorithms of one class, which are sets of its parameters: name -> (dataclass, summary)."""
    module = params_module or algorithm.partition(":")[0]
    return [
        AlgorithmSpec(
            name=name,
            loop=loop,
            params=f"rl_training.algorithms.{module}:{params}",
            algorithm=f"rl_training.algorithms.{algorithm}",
            action_spaces=actions,
            summary=summary,
            tier="stable" if name in _STABLE else "experimental",
            train=train,
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
_PLANNING = {"muzero": ("MuZeroParams", "Plans with a learned model by tree search.")}
_GUMBEL = {"gumbel_muzero": ("GumbelMuZeroParams", "MuZero whose search halves the candidates; needs few simulations.")}
_EFFICIENT = {
    "efficientzero": ("EfficientZeroParams", "MuZero with a value prefix, consistency and off-policy correction.")
}
_MANY_TASKS = {"scalezero": ("ScaleZeroParams", "One planning model for many tasks: experts, staged adapters.")}
_ANY_ACTIONS = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")

ALGORITHMS: dict[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        *_family("on_policy", "ppo:PPO", _ANY_ACTIONS, _POLICY_GRADIENT, params_module="ppo_params"),
        *_family("off_policy", "dqn:DQN", ("Discrete",), _Q_LEARNING),
        *_family("off_policy", "sac:SAC", ("Box",), _SOFT),
        *_family("off_policy", "discrete_sac:DiscreteSAC", ("Discrete",), _SOFT_DISCRETE),
        *_family("off_policy", "td3:TD3", ("Box",), _DETERMINISTIC),
        *_family("planning", "muzero:MuZero", ("Discrete",), _PLANNING, params_module="muzero_params"),
        *_family("planning", "gumbel_muzero:GumbelMuZero", ("Discrete",), _GUMBEL),
        *_family("planning", "efficientzero:EfficientZero", ("Discrete",), _EFFICIENT),
        *_family(
            "planning",
            "scalezero:ScaleZero",
            ("Discrete",),
            _MANY_TASKS,
            params_module="scalezero_params",
            train="rl_training.runtime.scalezero_trainer:train_scalezero",
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


def _load(target: str | type) -> Any:
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
