"""Groups runs into entries: repetitions of one experiment that differ only in their seeds."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.runs import algorithm_slug, sanitize
from rl_training.zoo.preset_lock import locked_presets
from rl_training.zoo.run_files import STATUSES
from rl_training.zoo.run_index import RunRecord, Task

# Keys that affect where and how a run is executed or its name, but not what is learned.
CARRIED_OUT_BY = frozenset(
    {
        "seed",
        "output_dir",
        "name",
        "tags",
        "preset",
        "benchmark",
        "tracking",
        "video",
        "acceleration",
        "device",
        "execution_backend",
        "torch_threads",
        "deterministic",
        "log_interval",
        "checkpoint_interval",
        "keep_checkpoints",
        "env_kwargs.num_workers",
        "env_kwargs.worker_timeout",
    }
)
_MISSING = object()


@dataclass(frozen=True)
class Entry:
    """One row of a leaderboard: all runs of one algorithm on one environment with one configuration.

    An entry on a suite of tasks has a row on the suite's board and, in `tasks`, one on the board of each task.
    """

    name: str
    """The preset's name if the configuration equals a preset's; else what it started from and a fingerprint."""
    algo: str
    env_id: str
    """The name of its board: an environment, a suite or a task; see `RunRecord.board`."""
    preset: str | None
    """The packaged preset that the runs name as their start, or whose configuration they have."""
    fingerprint: str
    settings: Mapping[str, Any]
    """The configuration by dotted key, without keys that do not affect what is learned."""
    runs: tuple[RunRecord, ...]

    @property
    def trained_on(self) -> str:
        """The `env_id` of its configuration; on the board of a task, that of the suite."""
        return self.runs[0].env_id

    @property
    def metric(self) -> str:
        """Name of its score in `metrics.jsonl`."""
        return self.runs[0].metric

    @property
    def task(self) -> Task | None:
        """The task of a suite that its scores belong to."""
        return self.runs[0].task

    @property
    def label(self) -> str | None:
        """The name that the user gave to all of its runs; None if there is none or several."""
        names = {run.label for run in self.runs}
        return names.pop() if len(names) == 1 else None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that all of its runs have."""
        first, *others = (run.tags for run in self.runs)
        return tuple(tag for tag in dict.fromkeys(first) if all(tag in tags for tags in others))

    def named(self, wanted: str) -> Entry | None:
        """Return the entry with only the runs that have this name, or else this tag; None if there are none."""
        by_name = [run for run in self.runs if run.label == wanted]
        chosen = by_name or [run for run in self.runs if wanted in run.tags]
        return replace(self, name=wanted, runs=tuple(chosen)) if chosen else None

    @cached_property
    def tasks(self) -> tuple[Entry, ...]:
        """The same entry on the board of each task of its suite; empty without a suite."""
        parts = zip(*(run.tasks for run in self.runs), strict=True)  # all runs have the same tasks
        return tuple(replace(self, env_id=runs[0].board, runs=runs) for runs in parts)

    @property
    def boards(self) -> tuple[Entry, ...]:
        """The entry on every board: that of its environment or suite, and those of the suite's tasks."""
        return (self, *self.tasks)

    @cached_property
    def by_seed(self) -> dict[int, RunRecord]:
        """The run that is used for each seed: the latest completed one whose final policy was evaluated."""
        chosen: dict[int, RunRecord] = {}
        for run in sorted(self.runs, key=lambda run: (run.seed, run.created_at, run.name, str(run.path))):
            if run.counts:
                chosen[run.seed] = run
        return chosen

    @property
    def scores(self) -> list[float]:
        """Final evaluation of each distinct seed, ordered by seed."""
        return [run.score for run in self.by_seed.values() if run.score is not None]

    @property
    def status_counts(self) -> dict[str, int]:
        """Number of runs by status; statuses without a run are left out."""
        counts = {status: sum(run.status == status for run in self.runs) for status in STATUSES}
        return {status: count for status, count in counts.items() if count}


def group_runs(runs: Iterable[RunRecord]) -> list[Entry]:
    """Return the entries of some runs, ordered by environment and name."""
    groups: defaultdict[str, list[RunRecord]] = defaultdict(list)
    settings_of: dict[int, tuple[str, dict[str, Any]]] = {}  # runs share configuration objects; see `RunRecord.config`
    for run in runs:
        if id(run.config) not in settings_of:
            settings = flat_settings(run.config)
            settings_of[id(run.config)] = fingerprint(settings), settings
        groups[settings_of[id(run.config)][0]].append(run)
    entries = [_entry(key, members, settings_of[id(members[0].config)][1]) for key, members in groups.items()]
    return sorted(entries, key=lambda entry: (entry.env_id, entry.name))


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration by dotted key, without the keys of `CARRIED_OUT_BY` and without empty values.

    Without null and empty values, a fingerprint stays the same when a later release adds an option that is off by
    default.
    """
    settings: dict[str, Any] = {}

    def add(block: Mapping[str, Any], prefix: str) -> None:
        for key, value in block.items():
            name = f"{prefix}{key}"
            if name in CARRIED_OUT_BY or value is None or value == [] or value == {}:
                continue
            if isinstance(value, Mapping):
                add(value, f"{name}.")
            else:
                settings[name] = _strict(value)

    add(config, "")
    return dict(sorted(settings.items()))


def _strict(value: Any) -> Any:
    """Return a value with non-finite numbers as text, which compares equal to itself and is valid in strict JSON."""
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def fingerprint(content: Any) -> str:
    """Return twelve hexadecimal digits that identify plain data, independent of the order of keys."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def find_entry(entries: Sequence[Entry], wanted: str) -> Entry:
    """Return the entry that a name refers to: its name or fingerprint, a name or tag of its runs, its preset or
    algorithm, or the beginning of its name; in this order.

    An entry found by a name or tag of runs contains only those runs and gets that name.
    """
    kinds: tuple[Callable[[Entry], Entry | None], ...] = (
        lambda entry: entry if entry.name == wanted else None,
        lambda entry: entry if entry.fingerprint == wanted else None,
        lambda entry: entry.named(wanted),
        lambda entry: entry if wanted in (entry.preset, entry.algo) else None,
        lambda entry: entry if entry.name.startswith(wanted) else None,
    )
    for kind in kinds:
        origins = [(entry, match) for entry in entries if (match := kind(entry)) is not None]
        found = [match for _, match in origins]
        if len({entry.fingerprint for entry in found}) < len(found):
            boards = ", ".join(entry.env_id for entry in found)
            raise ConfigError(f"`{wanted}` is on several boards ({boards}); choose one by --env")
        if len(found) > 1:
            names = _quoted([entry for entry, _ in origins])
            raise ConfigError(f"`{wanted}` may mean {names}; write one of these names")
        if found:
            return found[0]
    labels = {label for entry in entries for run in entry.runs for label in (run.label, *run.tags) if label is not None}
    known = [*(entry.name for entry in entries), *sorted(labels)]
    hint = did_you_mean(wanted, known) or f"; there are {_quoted(entries) or 'no entries'}"
    raise ConfigError(f"no entry is called `{wanted}`{hint}")


def setting_differences(entries: Sequence[Entry]) -> dict[str, list[Any]]:
    """Return the settings in which entries differ: by dotted key the value of each entry, None if it has none."""
    keys = sorted({key for entry in entries for key in entry.settings})
    columns = {key: [entry.settings.get(key, _MISSING) for entry in entries] for key in keys}
    return {
        key: [None if value is _MISSING else value for value in values]
        for key, values in columns.items()
        if any(value != values[0] for value in values)
    }


def _quoted(entries: Sequence[Entry]) -> str:
    return ", ".join(f"`{entry.name}`" for entry in entries)


def _entry(key: str, runs: Sequence[RunRecord], settings: Mapping[str, Any]) -> Entry:
    first = runs[0]
    same = preset_fingerprints().get(key)
    preset = min((run.preset for run in runs if run.preset is not None), default=same)
    origin = preset if preset is not None else f"{algorithm_slug(first.algo)}-{sanitize(first.env_id)}"
    return Entry(
        name=origin if preset is not None and preset == same else f"{origin}+{key[:8]}",
        algo=first.algo,
        env_id=first.board,
        preset=preset,
        fingerprint=key,
        settings=settings,
        runs=tuple(runs),
    )


@cache
def preset_settings() -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of all packaged presets."""
    return {name: flat_settings(config) for name, config in locked_presets().items()}


@cache
def preset_fingerprints() -> Mapping[str, str]:
    """Return the packaged preset of each fingerprint."""
    return {fingerprint(settings): name for name, settings in preset_settings().items()}
