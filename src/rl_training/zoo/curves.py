"""Learning curves of entries: the interquartile mean over seeds at common points, with its interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from rl_training.errors import AxiomError
from rl_training.experiment.runs import SCORE, SUITE_SCORE
from rl_training.experiment.statistics import interquartile_band, interquartile_mean
from rl_training.zoo.entries import Entry
from rl_training.zoo.leaderboard import SEEDS_FOR_INTERVAL
from rl_training.zoo.run_index import RunRecord, finite, read_metric_rows

Metric: TypeAlias = Literal["eval_return_mean", "train_return_mean"]
Axis: TypeAlias = Literal["steps", "time"]
METRIC_LABELS: Mapping[Metric, str] = {
    "eval_return_mean": "evaluation return",
    "train_return_mean": "training return",
}
MOST_POINTS = 100
"""Of one curve; more cannot be told apart."""

_EVENT_OF: Mapping[Metric, str] = {"eval_return_mean": "eval", "train_return_mean": "train"}


def metric_label(entry: Entry, metric: Metric) -> str:
    """Return what a metric is on the board of an entry; suites are scored by the normalised mean of their tasks."""
    return "normalised mean" if _row_key(entry, metric) == SUITE_SCORE else METRIC_LABELS[metric]


def _row_key(scored: Entry | RunRecord, metric: Metric) -> str:
    """Return what a metric is called in the rows of a run, which hold those of every task."""
    if metric == SCORE:
        return scored.metric
    return metric if scored.task is None else f"{metric}/{scored.task.name}"


class Line(NamedTuple):
    """Points of one run, by increasing x."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Curve:
    """What the seeds of one entry show together, and the runs that are not a part of it."""

    name: str
    seeds: int
    """Completed runs, one per distinct seed; 0 where `x` and `y` are empty."""
    x: np.ndarray
    y: np.ndarray
    """Interquartile mean over the seeds; with one seed the run itself."""
    low: np.ndarray | None = None
    """Lower end of the 95% interval at each point; None below three seeds."""
    high: np.ndarray | None = None
    unfinished: tuple[Line, ...] = ()
    """The latest run of each seed that has no completed one."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.x.size and not self.unfinished

    @property
    def end(self) -> float:
        """The last x of everything that is drawn."""
        return max(float(x[-1]) for x in (self.x, *(line.x for line in self.unfinished)) if x.size)


class _Point(NamedTuple):
    step: float
    seconds: float | None
    """Time spent collecting and learning until then; None where the run has not logged it."""
    value: float


@dataclass(frozen=True)
class Histories:
    """The points of runs, read once for curves of every kind."""

    points: Mapping[Path, Mapping[str, Sequence[_Point]]]
    """By run and by the metric's name in its rows."""
    problems: tuple[str, ...]
    """Sentences about runs whose rows are damaged; they have no points."""

    def line(self, run: RunRecord, metric: Metric, axis: Axis) -> Line:
        """Return one run's line; where points share an x the last one counts."""
        points = self.points.get(run.path, {}).get(_row_key(run, metric), ())
        if axis == "steps":
            found = {point.step: point.value for point in points}
        else:
            found = {point.seconds: point.value for point in points if point.seconds is not None}
        ordered = sorted(found.items())
        return Line(np.array([x for x, _ in ordered]), np.array([y for _, y in ordered]))


def read_histories(entries: Iterable[Entry]) -> Histories:
    """Read the metric rows of every run that a curve may show."""
    wanted: dict[Path, tuple[RunRecord, dict[str, str]]] = {}  # with the event of each key; a run is on many boards
    for entry in entries:
        for run in (*_finished(entry).values(), *_unfinished(entry)):
            events = wanted.setdefault(run.path, (run, {}))[1]
            events.update({_row_key(run, metric): event for metric, event in _EVENT_OF.items()})
    points: dict[Path, Mapping[str, Sequence[_Point]]] = {}
    problems = []
    for path, (run, events) in wanted.items():
        try:
            points[path] = _points(read_metric_rows(run), events)
        except AxiomError as error:
            problems.append(f"{run.name} has no curve: {error}")
    return Histories(points, tuple(sorted(problems)))


def learning_curve(entry: Entry, histories: Histories, metric: Metric, axis: Axis) -> Curve:
    """Return the curve of an entry over environment steps or over training time.

    The points are those at which any seed has a value, from where every seed has one; seeds are interpolated between
    their own points. A completed run keeps its last value, as its policy is still there to be used.
    """
    chosen = entry.by_seed if metric == SCORE else _finished(entry)
    lines = [line for run in chosen.values() if (line := histories.line(run, metric, axis)).x.size]
    unfinished = (histories.line(run, metric, axis) for run in _unfinished(entry))
    return curve_over_seeds(entry.name, lines, tuple(_thinned(line) for line in unfinished if line.x.size))


def curve_over_seeds(name: str, lines: Sequence[Line], unfinished: tuple[Line, ...] = ()) -> Curve:
    """Return the curve of one line per seed, none of them empty."""
    if not lines:
        return Curve(name, 0, np.array([]), np.array([]), unfinished=unfinished)
    grid = np.unique(np.concatenate([line.x for line in lines]))
    grid = _spread(grid[grid >= max(line.x[0] for line in lines)])
    values = np.stack([np.interp(grid, line.x, line.y) for line in lines])  # [seeds, points]
    middle = np.array([interquartile_mean(point) for point in values.T])
    low, high = interquartile_band(values) if len(lines) >= SEEDS_FOR_INTERVAL else (None, None)
    return Curve(name, len(lines), grid, middle, low, high, unfinished)


def _finished(entry: Entry) -> dict[int, RunRecord]:
    """Return the completed run of each seed: the one that stands for it, or the latest where none was evaluated."""
    completed = (run for run in _oldest_first(entry.runs) if run.status == "completed")
    return dict(sorted(({run.seed: run for run in completed} | entry.by_seed).items()))


def _unfinished(entry: Entry) -> list[RunRecord]:
    latest = {run.seed: run for run in _oldest_first(entry.runs)}
    finished = _finished(entry)
    return [run for seed, run in sorted(latest.items()) if seed not in finished]


def _oldest_first(runs: Sequence[RunRecord]) -> list[RunRecord]:
    return sorted(runs, key=lambda run: (run.created_at, str(run.path)))


def _points(rows: Sequence[Mapping[str, Any]], events: Mapping[str, str]) -> dict[str, list[_Point]]:
    values: dict[str, dict[float, float]] = {key: {} for key in events}
    clock = [(0.0, 0.0)]
    for number, row in enumerate(rows, start=1):
        step = finite(row.get("global_step"))
        if step is None:
            raise AxiomError(f"row {number} of its metrics has no global_step")
        seconds = _training_seconds(row)
        if seconds is not None:
            clock.append((step, seconds))
        for key, event in events.items():
            if row.get("event") == event and (value := finite(row.get(key))) is not None:
                values[key][step] = value
    # Evaluations do not say how long training took until then: that lies between the training rows around them.
    steps, times = zip(*clock, strict=True)
    timed = len(clock) > 1
    return {
        key: [
            _Point(step, seconds if timed else None, value)
            for (step, value), seconds in zip(found.items(), np.interp(list(found), steps, times).tolist(), strict=True)
        ]
        for key, found in values.items()
    }


def _training_seconds(row: Mapping[str, Any]) -> float | None:
    collecting, learning = finite(row.get("time_collect")), finite(row.get("time_update"))
    return None if collecting is None or learning is None else collecting + learning


def _thinned(line: Line) -> Line:
    kept = _spread(np.arange(line.x.size))
    return Line(line.x[kept], line.y[kept])


def _spread(values: np.ndarray) -> np.ndarray:
    """Return at most `MOST_POINTS` of some values, evenly chosen, the first and the last among them."""
    chosen = np.linspace(0, values.size - 1, min(values.size, MOST_POINTS)).round().astype(int)
    return values[chosen]
