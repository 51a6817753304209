"""The specification of an algorithm, and the check that its loop can train it.

Modules are given as text and imported on use; a user's specification may contain the classes themselves.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from rl_training.errors import ConfigError, did_you_mean

Tier = Literal["stable", "experimental", "contrib"]
Loop = Literal["on_policy", "off_policy", "planning", "offline"]


@dataclass(frozen=True)
class AlgorithmSpec:
    """One entry of the registry: everything that is needed to run an algorithm."""

    name: str
    """The value of `algo:` in a configuration."""

    loop: Loop
    """The training loop."""

    params: str | type
    """The dataclass of `algo_kwargs`, or `module:Class`."""

    algorithm: str | type
    """The algorithm, a subclass of the loop's base class in `algorithms.base`, or `module:Class`."""

    action_spaces: tuple[str, ...]
    """Gymnasium action spaces it accepts."""

    summary: str
    """One line for `axiomrl algos`."""

    observation_spaces: tuple[str, ...] = ("vector", "image", "dict")
    """Kinds of observation it accepts."""

    tier: Tier = "contrib"
    """Stability of its interface (docs/compatibility.md)."""

    train: str | None = None
    """`module:function` with `(config, *, callbacks=(), checkpoint=None) -> TrainResult`; default: the loop's."""

    many_tasks: bool = False
    """Whether it learns several tasks (`env_kwargs.tasks`); its spaces are then Dicts with one entry per task."""

    def load_train(self) -> Callable[..., Any]:
        """Import and return the train function."""
        train: Callable[..., Any] = _load(self.train or f"rl_training.runtime.{self.loop}:train_{self.loop}")
        return train

    def load_params(self) -> type:
        """Import and return the parameter dataclass."""
        params: type = _load(self.params)
        return params

    def algorithm_class(self, params: Any) -> Callable[..., Any]:
        """Return the class that trains with some parameters."""
        chosen: Callable[..., Any] = self.load_algorithm().for_params(params)  # type: ignore[attr-defined]
        return chosen

    def load_algorithm(self) -> Callable[..., Any]:
        """Import and return the algorithm's class, checked against the base class of its loop."""
        algorithm: Callable[..., Any] = _load(self.algorithm)
        base = _load(_BASES[self.loop].algorithm)
        if not (isinstance(algorithm, type) and issubclass(algorithm, base)):
            raise ConfigError(
                f"algo: {self.name}: the algorithm {_called(algorithm)} is no class that the {self.loop} loop can "
                f"train; make it a subclass of {base.__name__}, or name another loop"
            )
        return algorithm


class _Bases(NamedTuple):
    """The base classes that a loop requires, as `module:Class`."""

    algorithm: str
    params: str


_BASES: dict[str, _Bases] = {
    "on_policy": _Bases(
        "rl_training.algorithms.base:OnPolicyAlgorithm", "rl_training.algorithms.params.on_policy_params:OnPolicyParams"
    ),
    "off_policy": _Bases(
        "rl_training.algorithms.base:OffPolicyAlgorithm", "rl_training.algorithms.params.replay_params:ReplayParams"
    ),
    "planning": _Bases(
        "rl_training.algorithms.base:PlanningAlgorithm", "rl_training.algorithms.planning.params:PlanningParams"
    ),
    "offline": _Bases(
        "rl_training.algorithms.base:OfflineAlgorithm", "rl_training.algorithms.params.offline_params:OfflineParams"
    ),
}
_ACTION_SPACES = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")
_OBSERVATION_SPACES = ("vector", "image", "dict")


def check_spec(value: Any, name: str) -> AlgorithmSpec:
    """Return the object that a user named `name`, checked to be the specification of a trainable algorithm."""
    if not isinstance(value, AlgorithmSpec):
        raise ConfigError(
            f"algo: `{name}` is {_called(value)} and no AlgorithmSpec; write SPEC = AlgorithmSpec(...) there, with "
            "AlgorithmSpec from rl_training.extend, and name that"
        )
    if value.loop not in _BASES:
        hint = did_you_mean(str(value.loop), _BASES) or f"; the loops are {', '.join(get_args(Loop))}"
        raise ConfigError(f"algo: {value.name}: there is no loop `{value.loop}`{hint}")
    for key, known in (("action_spaces", _ACTION_SPACES), ("observation_spaces", _OBSERVATION_SPACES)):
        given = getattr(value, key)
        if not isinstance(given, tuple) or not given or not set(given) <= set(known):
            raise ConfigError(
                f"algo: {value.name}: {key} must be a tuple of some of {', '.join(known)}, got {given!r:.200}"
            )
    problem = _params_problem(value.load_params(), _load(_BASES[value.loop].params))
    if problem is not None:
        raise ConfigError(f"algo: {value.name}: the parameters {problem}")
    if not isinstance(value.algorithm, str):  # classes given as text are imported when needed
        value.load_algorithm()
    return value


def _params_problem(params: Any, base: type) -> str | None:
    """Return why a parameter class cannot be used by its loop, None if it can."""
    repair = f"write @dataclass(frozen=True) above a subclass of {base.__name__}"
    if not isinstance(params, type) or not dataclasses.is_dataclass(params):
        return f"{_called(params)} are no dataclass; {repair}"
    if not issubclass(params, base):
        return f"{params.__qualname__} lack what the loop needs; {repair}"
    fields = {field.name for field in dataclasses.fields(params)}
    hidden = [
        name
        for name, hint in vars(params).get("__annotations__", {}).items()
        if name not in fields and "ClassVar" not in str(hint)
    ]
    if hidden:
        return f"{params.__qualname__} have no field {', '.join(hidden)}, because their class is no dataclass; {repair}"
    required = [field.name for field in dataclasses.fields(params) if _has_no_default(field)]
    return f"{params.__qualname__} have no default for {', '.join(required)}; give one" if required else None


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _called(value: Any) -> str:
    return value.__qualname__ if isinstance(value, type) else f"an object of the type {type(value).__qualname__}"


def _load(target: str | type) -> Any:
    """Return the object named `module:Name`; an object is returned unchanged."""
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        if module.partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise ConfigError(f"algo: the specification names `{target}`, which cannot be imported: {error}") from error
