"""Runners: how an experiment is executed."""

from __future__ import annotations

from collections.abc import Callable

from rl_training.runtime.session import TrainResult


class FunctionRunner:
    """One ordinary run."""

    def __init__(self, run_fn: Callable[[], TrainResult]) -> None:
        self._run_fn = run_fn

    def run(self) -> TrainResult:
        """Run it."""
        return self._run_fn()
