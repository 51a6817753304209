"""The small nested blocks of a configuration: `tracking:` and `benchmark:`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, MinLen


@dataclass(frozen=True)
class WandbParams:
    """Where Weights & Biases files a run (extra `wandb`)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    project: Annotated[str, MinLen(1)] = "axiomrl"
    """Project that collects the runs."""

    entity: str | None = None
    """User or team; null means the account's default."""

    group: str | None = None
    """Group that the run belongs to, for example one benchmark."""

    name: str | None = None
    """Name of the run; null means the name of its run directory."""

    mode: Literal["online", "offline", "disabled"] = "online"
    """`offline` keeps the files in the run directory for a later `wandb sync`."""


@dataclass(frozen=True)
class TrackingParams:
    """Which dashboards receive the metrics; `metrics.jsonl` is always written."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    tensorboard: bool = True
    """Write TensorBoard event files to the run directory."""

    wandb: WandbParams | None = None
    """Send metrics to Weights & Biases; null does not."""


@dataclass(frozen=True)
class EarlyStoppingParams:
    """When to end a run before its horizon."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    metric: Annotated[str, MinLen(1)] = "eval_return_mean"
    """Metric to watch: one of an evaluation or of a training row."""

    mode: Literal["max", "min"] = "max"
    """Whether larger or smaller is better."""

    patience: Annotated[int, Ge(1)] | None = None
    """End after this many reports without an improvement."""

    min_delta: Annotated[float, Ge(0)] = 0.0
    """Smallest change that counts as an improvement."""

    target: float | None = None
    """End once the metric reaches this value."""

    def problems(self) -> list[str]:
        """Return what is inconsistent, one sentence each."""
        if self.patience is None and self.target is None:
            return ["nothing would ever stop the run; set patience, target or both"]
        return []


@dataclass(frozen=True)
class BenchmarkParams:
    """A sweep: the same configuration once per seed."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)] | None = None
    """Distinct seeds to train, one run each; null trains the one `seed` of the configuration."""

    def problems(self) -> list[str]:
        """Return what is inconsistent, one sentence each."""
        seeds = self.seeds or ()
        repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if not repeated:
            return []
        return [f"seeds: must be distinct; remove the repeated {', '.join(map(str, repeated))}"]
