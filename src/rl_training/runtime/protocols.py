"""What a session needs of the parts that a trainer gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Algorithm(Protocol):
    """What a session needs of an algorithm."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over what a saved state has learned, and nothing else of it."""


class Collector(Protocol):
    """What a session needs of a collector."""

    @property
    def steps_in_progress(self) -> int:
        """Steps collected but not yet counted by `advance`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with `env` None where the environments cannot be saved."""

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Go on from it."""
