"""Checks that an algorithm's networks return what its losses need."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.errors import ConfigError

ROWS = 2
"""Number of observations in the batch that networks are checked with."""


def check_shape(network: object, what: str, found: Any, *shape: int) -> None:
    """Raise an error if a network's output for `ROWS` observations is not a tensor of this shape."""
    got = f"shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    if got != f"shape {list(shape)}":
        raise ConfigError(
            f"algo: {type(network).__qualname__} returns {what} of {got} for {ROWS} observations, but the loss takes "
            f"shape {list(shape)}; return that, or override check_networks if your loss takes another"
        )
