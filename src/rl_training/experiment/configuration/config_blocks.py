"""The small nested blocks of a configuration: `tracking:`, `video:`, `early_stopping:` and `benchmark:`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import DocInfo, Ge, Le, MinLen, Predicate


def _is_project(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+", name) is not None


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
    `offline` if it is not set."""


@dataclass(frozen=True)
class MlflowParams:
    """Settings of MLflow (extra `mlflow`)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    uri: Annotated[str, MinLen(1)] | None = None
    """Address of a store or a server, such as `http://localhost:5000`; null: `mlflow/mlflow.db` beside the run
    directory, which all runs of an output directory share."""

    experiment: Annotated[str, MinLen(1)] = "axiomrl"
    """Experiment of the run."""


@dataclass(frozen=True)
class TrackioParams:
    """Settings of trackio (extra `trackio`), which keeps its files on this machine."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    project: Annotated[str, MinLen(1), Predicate(_is_project), DocInfo("letters, digits, `-`, `_`, `.`")] = "axiomrl"
    """Project of the run."""

    group: str | None = None
    """Group of the run, for example one benchmark."""


@dataclass(frozen=True)
class TrackingParams:
    """Dashboards that receive the metrics; `metrics.jsonl` is always written."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    tensorboard: bool = True
    """Write TensorBoard event files to the run directory."""

    wandb: WandbParams | bool | None = None
    """Send metrics to Weights & Biases: `true`, or a mapping with settings; null and `false`: do not."""

    mlflow: MlflowParams | bool | None = None
    """Send metrics to MLflow: `true`, or a mapping with settings; null and `false`: do not."""

    trackio: TrackioParams | bool | None = None
    """Send metrics to trackio: `true`, or a mapping with settings; null and `false`: do not."""

    @property
    def trackers(self) -> dict[str, WandbParams | MlflowParams | TrackioParams]:
        """Settings of each tracker in use, by its name, which is also that of its extra."""
        known = {"wandb": WandbParams, "mlflow": MlflowParams, "trackio": TrackioParams}
        given = {name: getattr(self, name) for name in known}
        return {name: known[name]() if value is True else value for name, value in given.items() if value}


@dataclass(frozen=True)
class VideoParams:
    """Films of the policy while it learns (extra `video`)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    interval: Annotated[int, Ge(1)]
    """Environment steps between films."""

    episodes: Annotated[int, Ge(1), Le(100)] = 1
    """Episodes to film each time, one file each; of every task in a suite."""


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
