"""Finds run directories and reads the parts that reports need: `metadata.json`, `config.yaml` and `metrics.jsonl`.

A directory that cannot be read is listed with the reason and does not stop a report. Nothing here imports torch or an
environment, and training rows are not decoded, so that reading hundreds of runs takes about a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.configuration.env_params import MODES
from rl_training.experiment.configuration.safe_yaml import parse_yaml
from rl_training.experiment.runs import CONFIG, METADATA, METRICS, SCORE, SUITE_SCORE
from rl_training.zoo.run_files import (
    UnreadableError,
    finite,
    is_name,
    read_row,
    read_run_file,
    read_run_metadata,
    row_step,
)

SMALLEST_SCALE = 1e-100
"""Smallest difference of two references: a score divided by less may overflow."""
NORMALIZED_MEDIAN = "eval_normalized_median"
PER_RUN_KEYS = ("seed", "output_dir")

_RUN_NAME = re.compile(r".+__seed\d+__\d{8}T\d{6}Z(-\d+)?")
# Including continuation lines: a long path is folded.
_PER_RUN_LINES = re.compile(rf"^(?:{'|'.join(PER_RUN_KEYS)}): .*\n(?:[ ].*\n|\n)*", flags=re.MULTILINE)
_CHECKPOINT = re.compile(r"checkpoints/step_([0-9]{1,18})")
# The beginning of a training row. Reports do not need its content; all other rows are decoded and checked.
_TRAINING_ROW = '{"event": "train", "global_step": '


class Evaluation(NamedTuple):
    """One evaluation during a run."""

    step: int
    score: float | None
    """The value of `RunRecord.metric`, usually the mean return of its episodes; None if it was not finite."""
    episodes: int | None
    """Number of episodes, over all tasks of a suite."""
    normalized_median: float | None = None
    """Median of the normalised scores over the tasks of a suite."""


class Task(NamedTuple):
    """One task of a suite that a single model is trained on."""

    name: str
    random: float | None
    """Return of a random policy."""
    target: float | None
    """Return to reach."""

    @property
    def scale(self) -> tuple[float, float] | None:
        """The returns at 0 and 1 of its scale; None if it has no references."""
        if self.random is None or self.target is None or abs(self.target - self.random) < SMALLEST_SCALE:
            return None
        return self.random, self.target


@dataclass(frozen=True)
class RunRecord:
    """One run, as used in reports."""

    path: Path
    algo: str
    env_id: str
    seed: int
    status: str
    error: str | None
    created_at: str
    finished_at: str | None
    config: Mapping[str, Any]
    """The resolved configuration without seed and output directory; runs with equal ones share one object."""
    steps: int
    """Environment steps at the last row of metrics; for an interrupted run, at its last checkpoint."""
    evaluations: tuple[Evaluation, ...]
    metric: str = SCORE
    """Name of the evaluations' score in `metrics.jsonl`."""
    task: Task | None = None
    """The task of the scores, if this is one task's part of a run on a suite."""
    tasks: tuple[RunRecord, ...] = ()
    """The run's part of each task of its suite; empty for a run on one environment."""

    @property
    def board(self) -> str:
        """Name of its board: an environment, a suite or a task of a suite.

        The board of a suite names the metric, since normalised scores and returns cannot be ranked together.
        """
        if self.task is not None:
            return f"{self.env_id}/{self.task.name}"
        if not self.tasks:
            return self.env_id
        return f"{self.env_id} ({'normalised mean' if self.metric == SUITE_SCORE else 'mean return'})"

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.path.name

    @property
    def label(self) -> str | None:
        """The name that the user gave to the run (`train --name`)."""
        return self.config.get("name")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the run."""
        return tuple(self.config.get("tags") or ())

    @property
    def preset(self) -> str | None:
        """The preset that the configuration started from."""
        return self.config.get("preset")

    @property
    def score(self) -> float | None:
        """Score of the evaluation at the run's last step; None if there is none."""
        return None if self.final is None else self.final.score

    @property
    def final(self) -> Evaluation | None:
        """The evaluation at the run's last step."""
        if not self.evaluations or self.evaluations[-1].step < self.steps:
            return None
        return self.evaluations[-1]

    @property
    def task_scores(self) -> dict[str, float | None]:
        """Score of each task of a suite, by name."""
        return {part.task.name: part.score for part in self.tasks if part.task is not None}

    @property
    def counts(self) -> bool:
        """Whether statistics use the run: it was completed and its final policy was evaluated."""
        return self.status == "completed" and self.score is not None


class UnreadableRun(NamedTuple):
    """A run directory that cannot be read, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True)
class RunIndex:
    """All runs below some paths, ordered by path."""

    runs: tuple[RunRecord, ...]
    unreadable: tuple[UnreadableRun, ...]


def index_runs(paths: Iterable[Path]) -> RunIndex:
    """Read every run directory that is one of `paths` or is below one."""
    reader = _RunReader()
    runs: list[RunRecord] = []
    unreadable: list[UnreadableRun] = []
    seen: set[str] = set()
    for root in paths:
        if not root.is_dir():
            raise ConfigError(f"{root}: no such directory; name where run directories are (`train --output-dir`)")
        for path in run_directories(root, unreadable):
            identity = os.path.realpath(path)
            if identity in seen:
                continue
            seen.add(identity)
            try:
                runs.append(reader.read(path))
            except UnreadableError as error:
                unreadable.append(UnreadableRun(path, str(error)))
    return RunIndex(
        tuple(sorted(runs, key=lambda run: str(run.path))), tuple(sorted(unreadable, key=lambda run: str(run.path)))
    )


def read_metric_rows(run: RunRecord) -> list[dict[str, Any]]:
    """Return all rows of a run's `metrics.jsonl`, for curves of any metric."""
    path = run.path / METRICS
    try:
        return [read_row(line, f"line {number}") for number, line in enumerate(_lines(run.path)[0], start=1)]
    except UnreadableError as error:
        raise AxiomError(f"{path} cannot be read: {error}") from error


def run_directories(root: Path, unreadable: list[UnreadableRun]) -> Iterator[Path]:
    """Yield the run directories at or below a path, and list the folders that cannot be read."""

    def note(error: OSError) -> None:
        unreadable.append(UnreadableRun(Path(error.filename), f"cannot be listed: {error.strerror}"))

    for folder, names, files in os.walk(root, onerror=note):
        path = Path(folder)
        if METADATA in files or METRICS in files or _RUN_NAME.fullmatch(path.name):
            names.clear()  # a run contains no other run
            yield path
        names[:] = [name for name in names if not name.startswith(".")]


@dataclass
class _RunReader:
    """Reads run directories; equal configurations are decoded once."""

    configs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read(self, path: Path) -> RunRecord:
        metadata = read_run_metadata(path)
        config = self._read_config(path)
        for key in ("algo", "env_id"):
            if config.get(key) != metadata[key]:
                raise UnreadableError(
                    f"{CONFIG} is of another run: its {key} is {config.get(key)!r:.200}, not {metadata[key]}"
                )
        steps, rows = _read_metrics(path, metadata)
        tasks = _tasks(config)
        metric = SUITE_SCORE if tasks and all(task.scale for task in tasks) else SCORE
        run = RunRecord(
            path=path,
            algo=metadata["algo"],
            env_id=metadata["env_id"],
            seed=metadata["seed"],
            status=metadata["status"],
            error=metadata.get("error"),
            created_at=metadata["created_at_utc"],
            finished_at=metadata.get("finished_at_utc"),
            config=config,
            steps=_checkpoint_step(metadata) or steps,
            evaluations=_evaluations(rows, metric),
            metric=metric,
        )
        if not tasks:
            return run
        keys = [f"{SCORE}/{task.name}" for task in tasks]
        parts = [
            replace(run, task=task, metric=key, evaluations=_evaluations(rows, key))
            for task, key in zip(tasks, keys, strict=True)
        ]
        return replace(run, tasks=tuple(parts))

    def _read_config(self, path: Path) -> dict[str, Any]:
        content = _PER_RUN_LINES.sub("", read_run_file(path, CONFIG))
        if content not in self.configs:
            try:
                config = parse_yaml(content, CONFIG, quick=True)
            except ConfigError as error:
                raise UnreadableError(str(error)) from None
            _check_config(config)
            self.configs[content] = {key: value for key, value in config.items() if key not in PER_RUN_KEYS}
        return self.configs[content]


def _check_config(config: Any) -> None:
    if not isinstance(config, dict):
        raise UnreadableError(f"{CONFIG} does not hold a configuration")
    tags, preset, name = config.get("tags"), config.get("preset"), config.get("name")
    if not (tags is None or (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags))):
        raise UnreadableError(f"{CONFIG} does not hold a configuration: its tags are not a list of texts")
    if not (preset is None or is_name(preset)):
        raise UnreadableError(f"{CONFIG} does not hold a configuration: its preset is not a name")
    if not (name is None or is_name(name)):
        raise UnreadableError(f"{CONFIG} does not hold a configuration: its name is not printable text")
    env_kwargs = config.get("env_kwargs")
    blocks = [env_kwargs, *(env_kwargs.get(mode) for mode in MODES if isinstance(env_kwargs, dict))]
    if not all(block is None or isinstance(block, dict) for block in blocks):
        raise UnreadableError(f"{CONFIG} does not hold a configuration: its env_kwargs are no mapping")
    names = [task.name for task in _tasks(config)]
    if not all(map(is_name, names)) or len(set(names)) < len(names):
        raise UnreadableError(f"{CONFIG} does not hold a configuration: its tasks are not told apart by names")


def _tasks(config: Mapping[str, Any]) -> tuple[Task, ...]:
    """Return the tasks of a suite, empty for a configuration with one environment."""
    env_kwargs = config.get("env_kwargs")
    tasks = env_kwargs.get("tasks") if isinstance(env_kwargs, dict) else None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) and "env_id" in task for task in tasks):
        return ()  # an environment's own argument may have this name
    return tuple(
        Task(
            task["env_id"] if task.get("name") is None else task["name"],
            finite(task.get("random_return")),
            finite(task.get("target_return")),
        )
        for task in tasks
    )


def _read_metrics(path: Path, metadata: Mapping[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    """Return the last row's step and the rows of evaluations."""
    lines, complete = _lines(path)
    if not lines:
        error = f", {metadata['error']}" if metadata["error"] else ""
        raise UnreadableError(f"{METRICS} is empty: no row was logged (status {metadata['status']}{error})")
    evaluations = []
    steps = 0
    for number, line in enumerate(lines, start=1):
        last = number == len(lines)
        if line.startswith(_TRAINING_ROW) and line.endswith("}") and not last:
            continue
        place = f"{METRICS}, line {number}"
        row = read_row(line, place, cut_off=last and not complete)
        steps = row_step(row, place)
        if row["event"] == "eval":
            evaluations.append(row)
    reached = metadata["latest_metrics"].get("global_step")
    if metadata["status"] == "completed" and isinstance(reached, int) and steps < reached:
        raise UnreadableError(f"{METRICS} is cut off: it ends at step {steps}, and the run had reached step {reached}")
    return steps, evaluations


def _checkpoint_step(metadata: Mapping[str, Any]) -> int | None:
    """Return the step that an interrupted run continues from: it was saved after its last row of metrics."""
    if metadata["status"] != "interrupted":
        return None
    found = _CHECKPOINT.fullmatch(str(metadata.get("latest_checkpoint")))
    return None if found is None else int(found[1])


def _evaluations(rows: Iterable[Mapping[str, Any]], metric: str) -> tuple[Evaluation, ...]:
    return tuple(
        Evaluation(
            row["global_step"],
            finite(row.get(metric)),
            row.get("eval_episodes"),
            finite(row.get(NORMALIZED_MEDIAN)) if metric == SUITE_SCORE else None,
        )
        for row in rows
    )


def _lines(path: Path) -> tuple[list[str], bool]:
    """Return the rows of `metrics.jsonl` as text, and whether the last one is complete."""
    text = read_run_file(path, METRICS, may_be_empty=True)
    return text.removesuffix("\n").split("\n") if text else [], text.endswith("\n")
