"""Metrics that callbacks log, kept until the next row is written."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

from rl_training.errors import AxiomError

LONGEST_NAME = 200
_OWN_NAMES = ("event", "global_step", "update_count", "steps_per_second", "epsilon", "stage", "gradient_norm")
_OWN_PREFIXES = ("train_", "eval_", "env_", "time_", "loss_", "learning_rate")


class LoggedValues:
    """Values by name, checked when they are logged so that the error is raised in the callback at fault."""

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}
        self._names: set[str] = set()  # all names that were ever logged

    def add(self, name: str, value: float, *, taken: Container[str]) -> None:
        """Keep a value for the next row; raise an error for names in `taken` that are not the callbacks' own."""
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            raise AxiomError(f"event.log: a metric's name is text of 1 to {LONGEST_NAME} characters, not {name!r:.80}")
        own = name in _OWN_NAMES or name.startswith(_OWN_PREFIXES)
        if own or (name in taken and name not in self._names):
            raise AxiomError(f"event.log: {name!r} is a metric of the package itself; choose another name")
        self._waiting[name] = _number(name, value)
        self._names.add(name)

    def take_into(self, row: dict[str, Any]) -> None:
        """Move the pending values into a row that is about to be written."""
        taken = [name for name in self._waiting if name in row]
        if taken:
            raise AxiomError(f"event.log: {taken[0]!r} is a metric of the package itself; choose another name")
        row.update(self._waiting)
        self._waiting.clear()

    def __bool__(self) -> bool:
        """Return whether values are pending."""
        return bool(self._waiting)

    def state_dict(self) -> dict[str, Any]:
        """Return the pending values and all names; empty if nothing was ever logged."""
        return {"waiting": dict(self._waiting), "names": sorted(self._names)} if self._names else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the pending values and names."""
        self._waiting = dict(state.get("waiting", {}))
        self._names = set(state.get("names", ()))


def _number(name: str, value: Any) -> float:
    """Return a Python float from a finite number of Python, NumPy or torch."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise AxiomError(f"event.log: the value of {name!r} must be a finite number, not {value!r:.80}")
    return value
