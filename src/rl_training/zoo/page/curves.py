"""Learning curves of entries: the interquartile mean over seeds at common points, with its interval."""

from __future__ import annotations

import itertools
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
from rl_training.zoo.run_files import finite
from rl_training.zoo.run_index import RunRecord, read_metric_rows

Axis: TypeAlias = Literal["steps", "time"]
METRIC_LABELS: Mapping[str, str] = {
    SCORE: "evaluation return",
    "train_return_mean": "training return",
}
MOST_POINTS = 100
"""Largest number of points of one curve; more cannot be distinguished."""
_POINTS_OF_FURTHER_METRICS = 40  # there are many of them, in small charts
_CRUSHED = 8  # a curve this many times shorter than its chart gets a chart of its own


def metric_label(entry: Entry, metric: str) -> str:
    """Return the label of a metric on the board of an entry; suites have the normalised mean of their tasks."""
    return "normalised mean" if _row_key(entry, metric) == SUITE_SCORE else METRIC_LABELS.get(metric, metric)


def _row_key(scored: Entry | RunRecord, metric: str) -> str:
    """Return the name of a metric in the rows of a run, which contain those of all tasks."""
    if metric == SCORE:
        return scored.metric
    return metric if scored.task is None else f"{metric}/{scored.task.name}"


class Line(NamedTuple):
    """Points of one run in the order of x."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Curve:
    """The learning curve of one entry, and its unfinished runs."""

    name: str
    seeds: int
    """Number of completed runs, one per distinct seed; 0 if `x` and `y` are empty."""
    x: np.ndarray
    y: np.ndarray
    """Interquartile mean over the seeds; for one seed, the run itself."""
    low: np.ndarray | None = None
    """Lower end of the 95% interval at each point; None below three seeds."""
    high: np.ndarray | None = None
    unfinished: tuple[Line, ...] = ()
    """The latest run of each seed without a completed run."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.x.size and not self.unfinished

    @property
    def end(self) -> float:
        """The largest x of all that is drawn."""
        return max(float(x[-1]) for x in (self.x, *(line.x for line in self.unfinished)) if x.size)

    def until(self, end: float) -> Curve:
        """Return the part of the curve up to `end`, with an interpolated last point."""
        low, high = (None if edge is None else _cut(Line(self.x, edge), end).y for edge in (self.low, self.high))
        unfinished = (_cut(line, end) for line in self.unfinished)
        kept = tuple(line for line in unfinished if line.x.size)
        x, y = _cut(Line(self.x, self.y), end)
        return Curve(self.name, self.seeds, x, y, low, high, kept)


class _Point(NamedTuple):
    step: float
    seconds: float | None
    """Time spent collecting and learning so far; None if the run has not logged it."""
    value: float


@dataclass(frozen=True)
class Histories:
    """The points of runs, read once for all curves."""

    points: Mapping[Path, Mapping[str, Sequence[_Point]]]
    """By run, then by the metric's name in its rows."""
    problems: tuple[str, ...]
    """Sentences about runs with damaged rows; they have no points."""
    further: Mapping[Path, Mapping[str, Line]]
    """By run: all numbers of its training rows over steps, at few points; empty unless requested."""
    names: frozenset[str]
    """Names of all metrics in the rows."""

    def line(self, run: RunRecord, metric: str, axis: Axis) -> Line:
        """Return one run's line; of points with the same x the last is used."""
        points = self.points.get(run.path, {}).get(_row_key(run, metric), ())
        if axis == "steps":
            found = {point.step: point.value for point in points}
        else:
            found = {point.seconds: point.value for point in points if point.seconds is not None}
        ordered = sorted(found.items())
        return Line(np.array([x for x, _ in ordered]), np.array([y for _, y in ordered]))


def read_histories(
    entries: Iterable[Entry], metrics: Iterable[str] = tuple(METRIC_LABELS), *, further: bool = False
) -> Histories:
    """Read the metric rows of every run that a curve may show; `further` also reads all numbers of training rows."""
    wanted: dict[Path, tuple[RunRecord, dict[str, None]]] = {}  # with its keys in order; a run is on many boards
    for entry in entries:
        for run in (*_finished(entry).values(), *_unfinished(entry)):
            keys = wanted.setdefault(run.path, (run, {}))[1]
            keys.update(dict.fromkeys(_row_key(run, metric) for metric in metrics))
    points: dict[Path, Mapping[str, Sequence[_Point]]] = {}
    others: dict[Path, Mapping[str, Line]] = {}
    names: set[str] = set()
    problems = []
    for path, (run, keys) in wanted.items():
        try:
            rows = read_metric_rows(run)
            points[path] = _points(rows, keys)
        except AxiomError as error:
            problems.append(f"{run.name} has no curve: {error}")
            continue
        names.update(*rows)
        if further:
            others[path] = _further_lines(rows)
    return Histories(points, tuple(sorted(problems)), others, frozenset(names))


def learning_curve(entry: Entry, histories: Histories, metric: str, axis: Axis, *, label: str | None = None) -> Curve:
    """Return the curve of an entry over environment steps or training time, with the name `label`.

    Its points are those at which any seed has a value, from the first at which all seeds have one; the values of seeds
    are interpolated in between. A completed run keeps its last value, as its policy remains usable.
    """
    chosen = entry.by_seed if metric == SCORE else _finished(entry)
    lines = [line for run in chosen.values() if (line := histories.line(run, metric, axis)).x.size]
    unfinished = (histories.line(run, metric, axis) for run in _unfinished(entry))
    dotted = tuple(_thinned(line) for line in unfinished if line.x.size)
    return curve_over_seeds(label or entry.name, lines, dotted)


def further_curve(entry: Entry, histories: Histories, metric: str, label: str) -> Curve:
    """Return the curve of any number in an entry's training rows, over steps and without an interval."""
    finished, unfinished = (
        [line for run in runs if (line := histories.further.get(run.path, {}).get(metric)) is not None]
        for runs in (_finished(entry).values(), _unfinished(entry))
    )
    return curve_over_seeds(label, finished, tuple(unfinished), most=_POINTS_OF_FURTHER_METRICS, banded=False)


def shorter_ranges(curves: Sequence[Curve]) -> list[float]:
    """Return the ends of up to two further charts, for curves that would be too short in a chart of all."""
    ends = sorted({curve.end for curve in curves if not curve.empty})
    return [end for end, longer in itertools.pairwise(ends) if 0 < end * _CRUSHED < longer][:2]


def curve_over_seeds(
    name: str,
    lines: Sequence[Line],
    unfinished: tuple[Line, ...] = (),
    *,
    most: int = MOST_POINTS,
    banded: bool = True,
) -> Curve:
    """Return the curve of one line per seed, none of them empty, with at most `most` points."""
    if not lines:
        return Curve(name, 0, np.array([]), np.array([]), unfinished=unfinished)
    grid = np.unique(np.concatenate([line.x for line in lines]))
    grid = _spread(grid[grid >= max(line.x[0] for line in lines)], most)
    values = np.stack([np.interp(grid, line.x, line.y) for line in lines])  # [seeds, points]
    middle = np.array([interquartile_mean(point) for point in values.T])
    low, high = interquartile_band(values) if banded and len(lines) >= SEEDS_FOR_INTERVAL else (None, None)
    return Curve(name, len(lines), grid, middle, low, high, unfinished)


def _finished(entry: Entry) -> dict[int, RunRecord]:
    """Return the completed run of each seed: the one used for its score, or the latest if none was evaluated."""
    completed = (run for run in _oldest_first(entry.runs) if run.status == "completed")
    return dict(sorted(({run.seed: run for run in completed} | entry.by_seed).items()))


def _unfinished(entry: Entry) -> list[RunRecord]:
    latest = {run.seed: run for run in _oldest_first(entry.runs)}
    finished = _finished(entry)
    return [run for seed, run in sorted(latest.items()) if seed not in finished]


def _oldest_first(runs: Sequence[RunRecord]) -> list[RunRecord]:
    return sorted(runs, key=lambda run: (run.created_at, str(run.path)))


def _points(rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> dict[str, list[_Point]]:
    by_event: dict[str, dict[str, dict[float, float]]] = {key: {"train": {}, "eval": {}} for key in keys}
    clock = [(0.0, 0.0)]
    for number, row in enumerate(rows, start=1):
        step = finite(row.get("global_step"))
        if step is None:
            raise AxiomError(f"row {number} of its metrics has no global_step")
        seconds = _training_seconds(row)
        if seconds is not None:
            clock.append((step, seconds))
        for key, values in by_event.items():
            if row.get("event") in ("train", "eval") and (value := finite(row.get(key))) is not None:
                values[row["event"]][step] = value
    # Evaluation rows do not contain the training time: it is interpolated between the training rows around them.
    steps, times = zip(*clock, strict=True)
    timed = len(clock) > 1
    return {
        key: [
            _Point(step, seconds if timed else None, value)
            for (step, value), seconds in zip(found.items(), np.interp(list(found), steps, times).tolist(), strict=True)
        ]
        for key, values in by_event.items()
        # A few names, such as times, are in both kinds of rows; those of training rows are used.
        for found in [values["eval"] if key.startswith("eval_") or not values["train"] else values["train"]]
    }


def _further_lines(rows: Sequence[Mapping[str, Any]]) -> dict[str, Line]:
    training = [row for row in rows if row.get("event") == "train" and finite(row.get("global_step")) is not None]
    kept = [training[number] for number in _spread(np.arange(len(training)), _POINTS_OF_FURTHER_METRICS)]
    found: dict[str, dict[float, float]] = {}
    for row in kept:
        for key, number in row.items():
            if (value := finite(number)) is not None:
                found.setdefault(key, {})[float(row["global_step"])] = value
    ordered = {key: sorted(values.items()) for key, values in found.items()}
    return {key: Line(*np.array(points).T) for key, points in ordered.items()}


def _training_seconds(row: Mapping[str, Any]) -> float | None:
    collecting, learning = finite(row.get("time_collect")), finite(row.get("time_update"))
    return None if collecting is None or learning is None else collecting + learning


def _cut(line: Line, end: float) -> Line:
    """Return the part of a line up to an x."""
    inside = line.x <= end
    if inside.all():
        return line
    x, y = line.x[inside], line.y[inside]
    if not x.size or x[-1] == end:
        return Line(x, y)
    return Line(np.append(x, end), np.append(y, np.interp(end, line.x, line.y)))


def _thinned(line: Line) -> Line:
    kept = _spread(np.arange(line.x.size))
    return Line(line.x[kept], line.y[kept])


def _spread(values: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Return at most `most` of the values, evenly spaced, including the first and the last."""
    chosen = np.linspace(0, values.size - 1, min(values.size, most)).round().astype(int)
    return values[chosen]
