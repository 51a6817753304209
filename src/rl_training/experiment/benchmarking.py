"""The summary of a sweep: aggregates over its seeds, and the file that stores them."""

from __future__ import annotations

import dataclasses
import math
import statistics as exact  # exact fractions: the order of rows changes no digit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.runs import SCORE, SUITE_SCORE, algorithm_slug, sanitize, utc_now
from rl_training.experiment.storage.files import storage_errors, write_json_atomically
from rl_training.experiment.storage.untrusted import UntrustedFileError
from rl_training.experiment.sweeps import COMPLETED, RUNNING, BenchmarkRunRecord

SUMMARY_SCHEMA_VERSION = 1
SUMMARY_NAMES = "benchmark_summary__*.json of an output directory"
FEWEST_FOR_INTERVAL = 3


def aggregate_numeric_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return `<metric>_mean`, `_std` (population), `_min` and `_max` of the numeric metrics that every row shares.

    A metric that is a boolean or not finite in some row is left out.
    """
    if not rows:
        return {}
    aggregates: dict[str, float] = {}
    for name in rows[0]:
        values = [float(row[name]) for row in rows if _is_number(row.get(name))]
        if len(values) == len(rows):
            aggregates |= {
                f"{name}_mean": exact.mean(values),
                f"{name}_std": exact.pstdev(values),
                f"{name}_min": min(values),
                f"{name}_max": max(values),
            }
    return aggregates


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def aggregate_sweep(records: Sequence[BenchmarkRunRecord]) -> dict[str, Any]:
    """Return the aggregates of the completed seeds, including the interquartile mean of their final evaluations.

    The interval of the interquartile mean needs at least three seeds and is left out below.
    """
    completed = sorted((record for record in records if record.status == COMPLETED), key=lambda record: record.seed)
    rows = [record.metrics for record in completed]
    aggregates: dict[str, Any] = {"benchmark_run_count": len(rows), **aggregate_numeric_metrics(rows)}
    for metric in score_metrics(rows[0] if rows else {}):
        if f"{metric}_mean" in aggregates:
            aggregates |= _interquartile_aggregates(metric, [float(row[metric]) for row in rows])
    return aggregates


def score_metric(metrics: Mapping[str, Any]) -> str:
    """Return the name of the metric that scores a final policy."""
    return SUITE_SCORE if SUITE_SCORE in metrics else SCORE


def score_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics that are scores: of the run, and of each task if there are several."""
    return [score_metric(metrics), *(name for name in metrics if name.startswith(f"{SCORE}/"))]


def _interquartile_aggregates(metric: str, scores: list[float]) -> dict[str, float]:
    from rl_training.experiment.statistics import bootstrap_interval, interquartile_mean

    aggregates = {f"{metric}_iqm": interquartile_mean(scores)}
    if len(scores) >= FEWEST_FOR_INTERVAL:
        low, high = bootstrap_interval(scores)
        aggregates |= {f"{metric}_iqm_low": low, f"{metric}_iqm_high": high}
    return aggregates


@dataclass(frozen=True)
class SweepSummary:
    """The content of a sweep's summary file."""

    config: Mapping[str, Any] | None
    """The configuration as plain data; None if the sweep was not made from one."""
    runs: tuple[BenchmarkRunRecord, ...]
    """One record per seed, in the order of the plan."""
    created_at_utc: str
    status: str = RUNNING
    finished_at_utc: str | None = None

    def with_record(self, record: BenchmarkRunRecord) -> SweepSummary:
        """Return the summary with an updated record of one seed."""
        runs = tuple(record if known.seed == record.seed else known for known in self.runs)
        return dataclasses.replace(self, runs=runs)

    def ended(self, status: str) -> SweepSummary:
        """Return the summary with an end time of now."""
        return dataclasses.replace(self, status=status, finished_at_utc=utc_now())

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "schema_version": SUMMARY_SCHEMA_VERSION,
            "status": self.status,
            "created_at_utc": self.created_at_utc,
            "finished_at_utc": self.finished_at_utc,
            "config": None if self.config is None else dict(self.config),
            "runs": [record.to_json() for record in self.runs],
            "aggregate_metrics": aggregate_sweep(self.runs),
        }


def run_place(run_dir: Path, directory: Path) -> Path:
    """Return where a run is now: a summary may have been moved to `directory` together with its runs."""
    beside = directory / run_dir.name
    return beside if beside.is_dir() else run_dir


def new_summary_path(output_dir: Path, algo: str, env_id: str) -> Path:
    """Return the path of the summary of a sweep that starts now; unique even within the same second."""
    timestamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    return output_dir / f"benchmark_summary__{algorithm_slug(algo)}__{sanitize(env_id)}__{timestamp}.json"


def write_summary(path: Path, summary: SweepSummary) -> None:
    """Replace the summary file atomically."""
    with storage_errors("the summary of the sweep", path.parent):
        write_json_atomically(path, summary.to_json())


def read_summary(path: Path) -> SweepSummary:
    """Return the sweep described by a summary file; aggregates are recomputed from its runs."""
    from rl_training.experiment.storage.schemas import OtherVersionError, Summary, read_checked

    try:
        content = read_checked(path, Summary, version_key="schema_version", version=SUMMARY_SCHEMA_VERSION)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): give the summary of a sweep") from error
    except OtherVersionError as error:
        raise ConfigError(
            f"{path} has schema version {error.version}, this release reads {SUMMARY_SCHEMA_VERSION}; "
            "use the release that wrote it"
        ) from error
    except UntrustedFileError as error:
        raise ConfigError(f"{path} is not the summary of a sweep ({error}): give a file {SUMMARY_NAMES}") from error
    return SweepSummary(
        config=content["config"],
        runs=tuple(BenchmarkRunRecord.from_json(record) for record in content["runs"]),
        status=content["status"],
        created_at_utc=content["created_at_utc"],
        finished_at_utc=content["finished_at_utc"],
    )
