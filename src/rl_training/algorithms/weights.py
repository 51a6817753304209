"""Taking over what another run has learned, and nothing else of its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Stateful(Protocol):
    """Anything with explicit state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""


def load_parts(component: Stateful, state: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Load the named parts of a saved state; the others stay as they are. `a.b` names the part `b` of the part `a`."""
    merged: dict[str, Any] = dict(component.state_dict())
    for name in names:
        outer, _, inner = name.partition(".")
        merged[outer] = {**merged[outer], inner: state[outer][inner]} if inner else state[outer]
    component.load_state_dict(merged)
