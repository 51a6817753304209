"""The small nested blocks of a configuration: `tracking:` and `benchmark:`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import DocInfo, Ge, MinLen


@dataclass(frozen=True)
class WandbParams:
    """Settings of Weights & Biases (extra `wandb`)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    project: Annotated[str, MinLen(1)] = "axiomrl"
    """Project of the run."""

    entity: str | None = None
    """User or team; null: the account's default."""

    group: str | None = None
    """Group of the run, for example one benchmark."""

    name: str | None = None
    """Name of the run; null: the name of its run directory."""

    mode: Literal["online", "offline", "disabled"] | None = None
    """`offline` keeps the files in the run directory for a later `wandb sync`; null: the variable WANDB_MODE, or
    `online` if it is not set."""


@dataclass(frozen=True)
class TrackingParams:
    """Dashboards that receive the metrics; `metrics.jsonl` is always written."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    tensorboard: bool = True
    """Write TensorBoard event files to the run directory."""

    wandb: WandbParams | bool | None = None
    """Send metrics to Weights & Biases: `true`, or a mapping with settings; null and `false`: do not."""

    @property
    def wandb_params(self) -> WandbParams | None:
        """Settings of Weights & Biases, None if it is not used."""
        return self.wandb if isinstance(self.wandb, WandbParams) else WandbParams() if self.wandb else None


@dataclass(frozen=True)
class EarlyStoppingParams:
    """When to end a run before its horizon."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    metric: Annotated[str, MinLen(1)] = "eval_return_mean"
    """Metric to watch, of an evaluation or of a training row."""

    mode: Literal["max", "min"] = "max"
    """Whether larger or smaller is better."""

    patience: Annotated[int, Ge(1)] | None = None
    """Stop after this many reports without an improvement."""

    min_delta: Annotated[float, Ge(0)] = 0.0
    """Smallest change that counts as an improvement."""

    target: float | None = None
    """Stop once the metric reaches this value."""

    def problems(self) -> list[str]:
        """Return a message for each inconsistency."""
        if self.patience is None and self.target is None:
            return ["nothing would ever stop the run; set patience, target or both"]
        return []


@dataclass(frozen=True)
class BenchmarkParams:
    """A sweep: one run of the same configuration per seed."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    seeds: (
        Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1), DocInfo("a list of integers >= 0 such as [1, 2, 3]")]
        | None
    ) = None
    """Distinct seeds, one run each, instead of the single `seed`; null: a single run."""

    jobs: Annotated[int, Ge(1)] | Literal["auto"] = 1
    """Seeds that are trained at the same time, each in a process of its own; `auto`, which `--seeds` implies, is one
    per core, and one after another where runs are so short that starting processes takes longer."""

    executor: Literal["serial", "processes", "ray"] | None = None
    """How seeds are executed: one after another, in processes, or on a Ray cluster (extra `ray`), with the same
    results; null means `processes` where there are several jobs and `serial` otherwise."""

    ray_address: Annotated[str, MinLen(1)] | None = None
    """Address of the Ray cluster, such as `10.0.0.5:6379`; null: the one on this machine."""

    def problems(self) -> list[str]:
        """Return a message for each inconsistency."""
        found = []
        repeated = sorted(seed for seed, count in Counter(self.seeds or ()).items() if count > 1)
        if repeated:
            found.append(f"seeds: must be distinct; remove the repeated {', '.join(map(str, repeated))}")
        if self.jobs not in (1, "auto") and self.executor in ("serial", "ray"):
            repair = "a cluster trains as many seeds at a time as it has room for; leave jobs out"
            repair = "use executor processes, or leave jobs out" if self.executor == "serial" else repair
            found.append(f"jobs: {self.jobs} does not go with executor {self.executor}: {repair}")
        if self.ray_address is not None and self.executor != "ray":
            found.append("ray_address: is read by executor ray only; set executor to ray, or leave the address out")
        return found
