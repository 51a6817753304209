"""What a kernel requires of an algorithm before it may stand in; each unmet requirement gives its reason."""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeVar

from torch import nn

from rl_training.models.encoders import DictEncoder, VectorEncoder, has_weights

Module = TypeVar("Module")
FEWEST_UPDATES = 2_000  # gradient steps from which on a run gains more by compiled code than it takes to compile it


class NoKernel(Exception):
    """Why there is no kernel for an algorithm, in a few words that the log repeats."""


def that(met: bool, reason: str) -> None:
    """Give `reason` where a requirement is not met."""
    if not met:
        raise NoKernel(reason)


def exact(module: Any, known: type[Module]) -> Module:
    """Return a module of exactly the known type; a subclass may compute something else."""
    that(type(module) is known, f"{type(module).__qualname__} is not exactly {known.__qualname__}")
    assert isinstance(module, known)
    return module


def plain_encoder(encoder: nn.Module, whose: str = "the") -> None:
    """Require an encoder of the package's own that has nothing to learn; `whose` begins the reason."""
    parts = list(encoder.encoders) if type(encoder) is DictEncoder else [encoder]
    that(not has_weights(encoder), f"{whose} encoder has weights")
    for part in parts:
        that(type(part) is VectorEncoder, f"{whose} encoder {type(part).__qualname__} is not the package's own")


def own_formula(algorithm: Any, known: type, *methods: str) -> None:
    """Require that the algorithm's methods are those of the known class: nobody has overridden or replaced them."""
    for name in methods:
        reason = f"{type(algorithm).__qualname__}.{name} is not that of {known.__qualname__}"
        that(is_own(algorithm, known, name), reason)


def is_own(algorithm: Any, known: type, *methods: str) -> bool:
    """Return whether the algorithm's methods and properties are those of the known class."""
    for name in methods:
        method = getattr(type(algorithm), name)
        replaced = name in vars(algorithm) or method is not getattr(known, name)
        method = getattr(method, "fget", method)  # of a property
        if replaced or (method.__module__, method.__qualname__) != (known.__module__, f"{known.__qualname__}.{name}"):
            return False
    return True


def own_functions(module: ModuleType, *names: str, defined_by: ModuleType | None = None) -> None:
    """Require that the functions a formula calls are the package's own, not others put in their place.

    `module` calls them, and defines them where no other module is given.
    """
    for name in names:
        function = getattr(module, name)
        home = (defined_by or module).__name__
        own = getattr(function, "__module__", None) == home and function.__name__ == name
        that(own, f"{module.__name__}.{name} was replaced")


def enough_updates(updates: float | None, worth: int = 1) -> None:
    """Require so many gradient steps that compiling pays; None stands for enough.

    `worth` is how many times as much each gains as one of a small perceptron.
    """
    enough = updates is None or updates * worth >= FEWEST_UPDATES
    that(enough, f"about {updates or 0:.0f} gradient steps are too few for compiling to pay")
