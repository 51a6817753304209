"""Callbacks: observe a run, request a stop, keep state that is saved in checkpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import AxiomError, ConfigError


class ReadOnlyMetrics(dict[str, Any]):
    """A row of metrics that callbacks may only read; `event.log` adds metrics."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ReadOnlyError("event.metrics cannot be changed; event.log(name, value) adds a metric to the next row")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


class ReadOnlyError(AxiomError, TypeError):
    """A callback tried to change read-only data."""


def _no_row(name: str, value: float) -> None:
    raise AxiomError(f"the metric {name!r} cannot be logged: this event belongs to no run")


@dataclass(frozen=True)
class TrainingEvent:
    """The data that a callback receives."""

    run_dir: Path
    step: int
    total_timesteps: int
    update_count: int
    request_stop: Callable[[str], None]
    """Request the end of the run after this step; the argument is the reason."""
    metrics: Mapping[str, Any] = field(default_factory=ReadOnlyMetrics)
    """The row that was just logged, or the evaluation's metrics, read-only; empty if nothing was logged."""
    checkpoint_path: Path | None = None
    status: str = "running"
    error: BaseException | None = None
    log: Callable[[str, float], None] = _no_row
    """Add a metric to the next row, under a name that the package does not use; the latest value of a name is used."""

    def __post_init__(self) -> None:
        """Make the metrics read-only."""
        if not isinstance(self.metrics, ReadOnlyMetrics):
            object.__setattr__(self, "metrics", ReadOnlyMetrics(self.metrics))


class Callback:
    """Base class: override the hooks you need. The state returned by `state_dict` is saved with every checkpoint."""

    def on_train_start(self, event: TrainingEvent) -> None:
        """Training starts or continues."""

    def on_collect_end(self, event: TrainingEvent) -> None:
        """Experience was collected and is about to be learned from."""

    def on_update_end(self, event: TrainingEvent) -> None:
        """The model was updated."""

    def on_eval_end(self, event: TrainingEvent) -> None:
        """An evaluation ended."""

    def on_checkpoint(self, event: TrainingEvent) -> None:
        """A checkpoint was written."""

    def on_train_end(self, event: TrainingEvent) -> None:
        """Training ended, also after a failure."""

    def on_exception(self, event: TrainingEvent) -> None:
        """Training failed with `event.error`."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain data to save."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved state."""


class CallbackList:
    """Several callbacks, called in order."""

    def __init__(self, callbacks: Iterable[Callback], *, named: Mapping[str, Callback] | None = None) -> None:
        """`named` are the callbacks of the configuration by their keys; they are called first."""
        self._by_key = dict(named or {})
        counts: Counter[str] = Counter()
        for callback in callbacks:  # numbered within a class, so that adding another class changes no number
            name = type(callback).__name__
            counts[name] += 1
            self._by_key[f"{name}-{counts[name]}"] = callback
        self.callbacks = list(self._by_key.values())

    def __bool__(self) -> bool:
        """Return whether there are any callbacks."""
        return bool(self.callbacks)

    def call(self, hook: str, event: TrainingEvent) -> None:
        """Call one hook of every callback; errors do not keep the others from being called, and the first is raised."""
        errors: list[Exception] = []
        for callback in self.callbacks:
            try:
                getattr(callback, hook)(event)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def state_dict(self) -> dict[str, Any]:
        """Return every callback's state under its key, or under its class and number."""
        return {key: state for key, callback in self._by_key.items() if (state := callback.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved states; a callback without saved state starts fresh."""
        for key, callback in self._by_key.items():
            if key in state:
                callback.load_state_dict(state[key])


class EarlyStopping(Callback):
    """Stops when a metric reaches its target or has not improved for some time."""

    def __init__(
        self,
        metric: str = "eval_return_mean",
        *,
        mode: Literal["max", "min"] = "max",
        patience: int | None = None,
        min_delta: float = 0.0,
        target: float | None = None,
    ) -> None:
        """Watch `metric`; `patience` is the number of reports without an improvement by more than `min_delta`."""
        if mode not in ("max", "min"):
            raise ConfigError(f"early_stopping.mode: must be max or min, got {mode!r}")
        if patience is None and target is None:
            raise ConfigError("early_stopping: set patience, target or both")
        self.metric = metric
        self.sign = 1.0 if mode == "max" else -1.0
        self.patience = patience
        self.min_delta = min_delta
        self.target = target
        self.best = -math.inf  # larger is better; negated for mode `min`
        self.reports_without_improvement = 0

    def on_update_end(self, event: TrainingEvent) -> None:
        """Watch metrics of training rows."""
        self._watch(event)

    def on_eval_end(self, event: TrainingEvent) -> None:
        """Watch metrics of evaluations."""
        self._watch(event)

    def _watch(self, event: TrainingEvent) -> None:
        value = event.metrics.get(self.metric)
        if value is None:
            return
        score = self.sign * value
        if score > self.best + self.min_delta:
            self.best = score
            self.reports_without_improvement = 0
        else:
            self.reports_without_improvement += 1
        if self.target is not None and score >= self.sign * self.target:
            event.request_stop(f"{self.metric} reached {value:g}, its target is {self.target:g}")
        elif self.patience is not None and self.reports_without_improvement >= self.patience:
            event.request_stop(f"{self.metric} has not improved for {self.patience} reports")

    def state_dict(self) -> dict[str, Any]:
        """Return the best score and the count."""
        return {"best": self.best, "reports_without_improvement": self.reports_without_improvement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best score and the count."""
        self.best = float(state["best"])
        self.reports_without_improvement = int(state["reports_without_improvement"])
