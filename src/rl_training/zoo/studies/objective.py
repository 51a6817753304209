"""What trials are compared by."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from rl_training.errors import RunFailure
from rl_training.experiment.benchmarking import score_metric
from rl_training.experiment.statistics import interquartile_mean
from rl_training.experiment.sweeps import BenchmarkRunRecord
from rl_training.experiment.tuning.study import Objective
from rl_training.zoo.run_files import finite
from rl_training.zoo.run_index import index_runs


def seed_score(objective: Objective, record: BenchmarkRunRecord) -> float:
    """Return the score of one completed seed: of its final policy, or the area under its learning curve."""
    metric = score_metric(record.metrics)
    score = finite(record.metrics.get(metric))
    if score is None:
        raise RunFailure(f"seed {record.seed} has no finite {metric}: it diverged, or was never evaluated")
    if objective == "final":
        return score
    assert record.run_dir is not None
    return _area(record.run_dir)


def trial_value(scores: Sequence[float]) -> float:
    """Return the objective of a trial from the scores of its seeds."""
    return interquartile_mean(list(scores))


def _area(run_dir: Path) -> float:
    """Return the mean evaluation over the steps of a run, by trapezoids: what it earned while it learned."""
    found = index_runs([run_dir])
    points = sorted((one.step, one.score) for run in found.runs for one in run.evaluations if one.score is not None)
    if not points:
        raise RunFailure(f"{run_dir} has no evaluations to take the area under")
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    span = points[-1][0] - points[0][0]
    return area / span if span else points[-1][1]
