"""Callbacks: watch a run, ask it to stop, keep state that is checkpointed with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import AxiomError, ConfigError


class ReadOnlyMetrics(dict[str, Any]):
    """A row of metrics that callbacks may read: what they have to say goes through `event.log`."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ReadOnlyError("event.metrics cannot be changed; event.log(name, value) adds a metric to the next row")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


class ReadOnlyError(AxiomError, TypeError):
    """A callback tried to change what it may only read."""


def _no_row(name: str, value: float) -> None:
    raise AxiomError(f"the metric {name!r} cannot be logged: this event belongs to no run")


@dataclass(frozen=True)
class TrainingEvent:
    """What a callback is told."""

    run_dir: Path
    step: int
    total_timesteps: int
    update_count: int
    request_stop: Callable[[str], None]
    """Ask the run to end after this step; the argument is the reason."""
    metrics: Mapping[str, Any] = field(default_factory=ReadOnlyMetrics)
    """The row that was just logged or the evaluation's metrics, to read; empty where nothing was logged."""
    checkpoint_path: Path | None = None
    status: str = "running"
    error: BaseException | None = None
    log: Callable[[str, float], None] = _no_row
    """Add a metric to the next row, under a name that the package does not use; the latest value of a name counts."""

    def __post_init__(self) -> None:
        """Make the metrics read-only."""
        if not isinstance(self.metrics, ReadOnlyMetrics):
            object.__setattr__(self, "metrics", ReadOnlyMetrics(self.metrics))


class Callback:
    """Base class: override what you need. State given by `state_dict` is saved with every checkpoint."""

    def on_train_start(self, event: TrainingEvent) -> None:
        """Training starts or goes on."""

    def on_collect_end(self, event: TrainingEvent) -> None:
        """Experience was collected and is about to be learned from."""

    def on_update_end(self, event: TrainingEvent) -> None:
        """The model was updated."""

    def on_eval_end(self, event: TrainingEvent) -> None:
        """An evaluation was made."""

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
        """Put saved state back."""


class CallbackList:
    """Several callbacks called in order."""

    def __init__(self, callbacks: Iterable[Callback], *, named: Mapping[str, Callback] | None = None) -> None:
        """`named` are those of the configuration by the keys that hold them; they are called first."""
        self._by_key = dict(named or {})
        counts: Counter[str] = Counter()
        for callback in callbacks:  # counted within a class, so that adding another kind disturbs none
            name = type(callback).__name__
            counts[name] += 1
            self._by_key[f"{name}-{counts[name]}"] = callback
        self.callbacks = list(self._by_key.values())

    def __bool__(self) -> bool:
        """Whether there is anybody to call."""
        return bool(self.callbacks)

    def call(self, hook: str, event: TrainingEvent) -> None:
        """Call one hook of every callback; where some raise, the others are still told before the first error is."""
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
        """Put state back; a callback that was not there when it was saved starts fresh."""
        for key, callback in self._by_key.items():
            if key in state:
                callback.load_state_dict(state[key])


class EarlyStopping(Callback):
    """Stop when a metric reaches its target or has not improved for a while."""

    def __init__(
        self,
        metric: str = "eval_return_mean",
        *,
        mode: Literal["max", "min"] = "max",
        patience: int | None = None,
        min_delta: float = 0.0,
        target: float | None = None,
    ) -> None:
        """Watch `metric`; `patience` counts its reports without an improvement of more than `min_delta`."""
        if mode not in ("max", "min"):
            raise ConfigError(f"early_stopping.mode: must be max or min, got {mode!r}")
        if patience is None and target is None:
            raise ConfigError("early_stopping: set patience, target or both")
        self.metric = metric
        self.sign = 1.0 if mode == "max" else -1.0
        self.patience = patience
        self.min_delta = min_delta
        self.target = target
        self.best = -math.inf  # in the direction of improvement
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
        """Go on counting."""
        self.best = float(state["best"])
        self.reports_without_improvement = int(state["reports_without_improvement"])
