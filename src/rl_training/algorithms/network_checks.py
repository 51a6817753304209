"""Whether the networks of an algorithm return what its losses take."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.errors import ConfigError

ROWS = 2
"""Observations that networks are tried on before they learn."""


def check_shape(network: object, what: str, found: Any, *shape: int) -> None:
    """Raise where a network's output for `ROWS` observations is no tensor of this shape."""
    got = f"shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    if got != f"shape {list(shape)}":
        raise ConfigError(
            f"algo: {type(network).__qualname__} returns {what} of {got} for {ROWS} observations, and the loss takes "
            f"shape {list(shape)}; return that, or override check_networks where your loss takes another"
        )
