"""The record behind all reports, built from run directories and rendered as tables, JSON, CSV and pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import nearest
from rl_training.zoo.comparison import (
    EXPORT_VERSION,
    BaselineResult,
    Scored,
    StoredLeaderboard,
    compare_with_entry,
    compare_with_stored,
    read_leaderboard,
)
from rl_training.zoo.drift import at_least, worst_severity
from rl_training.zoo.entries import Entry, group_runs, setting_differences
from rl_training.zoo.labels import entry_labels
from rl_training.zoo.leaderboard import (
    PROFILE_THRESHOLDS,
    Standing,
    SuiteStanding,
    rank_entries,
    suite_standings,
)
from rl_training.zoo.manifests import Manifest, load_manifests, manifest_of
from rl_training.zoo.run_index import RunRecord, UnreadableRun, index_runs

logger = logging.getLogger("rl_training")


@dataclass(frozen=True)
class Filters:
    """Selects the runs and entries of a report; an empty filter selects all."""

    algo: Sequence[str] = ()
    env: Sequence[str] = ()
    preset: Sequence[str] = ()
    suite: Sequence[str] = ()
    tag: Sequence[str] = ()
    status: Sequence[str] = ()
    min_seeds: int = 0

    def select_runs(self, runs: Iterable[RunRecord]) -> list[RunRecord]:
        """Return the selected runs, and warn of a value that no run has."""
        kept = list(runs)
        for name, wanted, values_of in self._run_filters():
            if not wanted:
                continue
            known = sorted({value for run in kept for value in values_of(run)})
            for value in wanted:
                if kept and value not in known:
                    close = nearest(value, known, limit=1)
                    hint = f"; did you mean `{close[0]}`?" if close else ""
                    logger.warning("--%s %s: no run has it%s", name, value, hint)
            kept = [run for run in kept if not set(values_of(run)).isdisjoint(wanted)]
        return kept

    def select_entries(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the selected entries: of a preset, with enough seeds; of a suite perhaps only some tasks."""
        return [
            board
            for entry in entries
            for board in self._chosen_boards(entry)
            if (not self.preset or board.preset in self.preset) and len(board.by_seed) >= self.min_seeds
        ]

    def _chosen_boards(self, entry: Entry) -> Sequence[Entry]:
        if not entry.tasks or not self.env or not {entry.env_id, entry.trained_on}.isdisjoint(self.env):
            return (entry,)
        return [task for task in entry.tasks if task.env_id in self.env]

    def admits(self, stored: Scored) -> bool:
        """Return whether an entry of a baseline is selected."""
        wanted = (
            (self.algo, stored.algo),
            (self.env, stored.trained_on if stored.trained_on in self.env else stored.env_id),
            (self.preset, stored.preset),
            (self.suite, _suite_of(stored.env_id)),
        )
        return all(not values or value in values for values, value in wanted)

    def _run_filters(self) -> list[tuple[str, Sequence[str], Callable[[RunRecord], Sequence[str]]]]:
        return [
            ("algo", self.algo, lambda run: [run.algo]),
            ("env", self.env, lambda run: [run.env_id, run.board, *(part.board for part in run.tasks)]),
            ("suite", self.suite, lambda run: [_suite_of(run.env_id)]),
            ("tag", self.tag, lambda run: run.tags),
            ("status", self.status, lambda run: [run.status]),
        ]


class Gate(NamedTuple):
    """A condition under which a report fails."""

    name: str
    reasons: tuple[str, ...]
    """Reasons of the failure; empty if the condition is met."""


@dataclass(frozen=True)
class Report:
    """Everything that renderers show."""

    runs: tuple[RunRecord, ...]
    unreadable: tuple[UnreadableRun, ...]
    standings: tuple[Standing, ...]
    """Entries by environment, the best first, with ranks, statistics and drift."""
    suites: tuple[SuiteStanding, ...]
    notices: tuple[str, ...]
    baseline: BaselineResult | None = None
    gates: tuple[Gate, ...] = ()

    @property
    def environments(self) -> list[str]:
        """Environments with entries, in order."""
        return sorted({place.entry.env_id for place in self.standings})

    @property
    def manifests(self) -> list[Manifest]:
        """Suites that the environments belong to."""
        return [
            manifest for manifest in load_manifests() if not manifest.environments.keys().isdisjoint(self.environments)
        ]

    @property
    def entry_names(self) -> dict[Path, str]:
        """Name of the entry of each run."""
        return {run.path: place.entry.name for place in self.standings for run in place.entry.runs}

    @property
    def counted(self) -> set[Path]:
        """Runs used in statistics: one per distinct seed of an entry."""
        return {run.path for place in self.standings for run in place.entry.by_seed.values()}

    def board(self, env_id: str) -> list[Standing]:
        """Return the standings of one environment."""
        return [place for place in self.standings if place.entry.env_id == env_id]

    @cached_property
    def labels(self) -> dict[tuple[str, str], str]:
        """Label of each entry on each board, by board and fingerprint; see `entry_labels`."""
        boards = {env_id: [place.entry for place in self.board(env_id)] for env_id in self.environments}
        return {
            (env_id, entry.fingerprint): label
            for env_id, entries in boards.items()
            for entry, label in zip(entries, entry_labels(entries), strict=True)
        }

    def label(self, entry: Entry) -> str:
        """Return the label of an entry on its board."""
        return self.labels[entry.env_id, entry.fingerprint]

    def differences(self, env_id: str) -> dict[str, list[Any]]:
        """Return the settings in which an environment's entries differ, each with one value per entry of its board."""
        return setting_differences([place.entry for place in self.board(env_id)])

    def as_record(self) -> dict[str, Any]:
        """Return the whole report as plain data; `--baseline` reads this export."""
        names, counted = self.entry_names, self.counted
        return {
            "export_version": EXPORT_VERSION,
            "runs": [_run_record(run, names[run.path], run.path in counted) for run in self.runs],
            "unreadable": [{"run_dir": str(run.path), "reason": run.reason} for run in self.unreadable],
            "entries": [
                {**_standing_record(place), "label": self.label(place.entry), "tags": list(place.entry.tags)}
                for place in self.standings
            ],
            "setting_differences": {env_id: self.differences(env_id) for env_id in self.environments},
            "suites": [_suite_record(place) for place in self.suites],
            "profile_thresholds": list(PROFILE_THRESHOLDS),
            "manifests": {manifest.suite: manifest.identity for manifest in self.manifests},
            "baseline": None if self.baseline is None else _baseline_record(self.baseline),
            "notices": list(self.notices),
            "gates": [{"name": gate.name, "fired": bool(gate.reasons), "reasons": gate.reasons} for gate in self.gates],
        }


def build_report(
    paths: Iterable[Path],
    filters: Filters | None = None,
    *,
    baseline: str | None = None,
    fail_on_regression: bool = False,
    fail_on_drift: str | None = None,
    zoo_only: bool = False,
) -> Report:
    """Read runs and compute everything that a report shows.

    `baseline` is the file of a stored leaderboard or the name of an entry; `fail_on_drift` is the lowest severity of
    drift that makes the report fail; `zoo_only` keeps entries that started from a packaged preset.
    """
    filters = filters or Filters()
    index = index_runs(paths)
    entries = filters.select_entries(group_runs(filters.select_runs(index.runs)))
    if zoo_only:
        entries = [entry for entry in entries if entry.preset is not None]
    standings = rank_entries([board for entry in entries for board in entry.boards])
    suites, notices = suite_standings(standings)
    notices += _mixed_suites(entries)
    result = None if baseline is None else _compare(baseline, entries, filters)
    gates = []
    if fail_on_regression and result is not None:
        gates.append(Gate("regression", tuple(result.regressions)))
    if fail_on_drift is not None:
        gates.append(Gate("manifest drift", tuple(_drift_reasons(standings, result, fail_on_drift))))
    chosen = {run.path for entry in entries for run in entry.runs}
    return Report(
        runs=tuple(run for run in index.runs if run.path in chosen),
        unreadable=index.unreadable,
        standings=tuple(standings),
        suites=tuple(suites),
        notices=(*notices, *(result.undecided if result is not None else ())),
        baseline=result,
        gates=tuple(gates),
    )


def _compare(baseline: str, entries: Sequence[Entry], filters: Filters) -> BaselineResult:
    path = Path(baseline)
    if not path.is_file() and path.suffix != ".json":
        return compare_with_entry(entries, baseline)
    stored = read_leaderboard(path)
    admitted = tuple(entry for entry in stored.entries if filters.admits(entry))
    return compare_with_stored(entries, StoredLeaderboard(path, admitted, stored.manifests))


def _drift_reasons(standings: Sequence[Standing], baseline: BaselineResult | None, severity: str) -> list[str]:
    reasons = dict.fromkeys(  # an entry has the same drift on every board of its suite
        f"{place.entry.name}: {finding.severity} drift, {finding.sentence()}"
        for place in standings
        for finding in at_least(place.drift, severity)
    )
    return list(reasons) + list(baseline.changed_manifests if baseline is not None else ())


def _mixed_suites(entries: Sequence[Entry]) -> list[str]:
    """Return sentences about suites whose entries differ in their tasks or references."""
    notices = []
    for board in sorted({entry.env_id for entry in entries if entry.tasks}):
        kinds = {frozenset(part.task for part in entry.tasks) for entry in entries if entry.env_id == board}
        if len(kinds) > 1:
            notices.append(f"entries on {board} differ in tasks or references; only the boards of tasks compare them")
    return notices


def _suite_of(env_id: str) -> str:
    manifest = manifest_of(env_id)
    return "" if manifest is None else manifest.suite


def _run_record(run: RunRecord, entry: str, counted: bool) -> dict[str, Any]:
    return {
        "run_dir": str(run.path),
        "entry": entry,
        "algo": run.algo,
        "env_id": run.env_id,
        "seed": run.seed,
        "status": run.status,
        "counted": counted,
        "steps": run.steps,
        "score": run.score,
        "created_at_utc": run.created_at,
        "finished_at_utc": run.finished_at,
        "name": run.label,
        "tags": list(run.tags),
        "error": run.error,
        **({"metric": run.metric, "task_scores": run.task_scores} if run.tasks else {}),
    }


def _standing_record(place: Standing) -> dict[str, Any]:
    entry, summary = place.entry, place.summary
    return {
        "name": entry.name,
        "algo": entry.algo,
        "env_id": entry.env_id,
        "preset": entry.preset,
        "suite": _suite_of(entry.env_id) or None,
        "fingerprint": entry.fingerprint,
        "rank": place.rank,
        "seeds": len(entry.by_seed),
        "iqm": None if summary is None else summary.iqm,
        "interval": None if summary is None else summary.interval,
        "median": None if summary is None else summary.median,
        "mean": None if summary is None else summary.mean,
        "std": None if summary is None else summary.std,
        "min": None if summary is None else summary.low,
        "max": None if summary is None else summary.high,
        "normalized_iqm": place.normalized,
        "note": "no score" if summary is None else summary.note,
        "scores": {str(seed): run.score for seed, run in entry.by_seed.items()},
        "runs": entry.status_counts,
        "drift": worst_severity(place.drift),
        "drift_findings": [finding._asdict() for finding in place.drift],
        **(_suite_part(place) if entry.tasks or entry.task is not None else {}),
    }


def _suite_part(place: Standing) -> dict[str, Any]:
    """Return the additional keys in the record of an entry on a suite or on one of its tasks."""
    return {
        "trained_on": place.entry.trained_on,
        "metric": place.entry.metric,
        "normalized_median": place.normalized_median,
    }


def _suite_record(place: SuiteStanding) -> dict[str, Any]:
    return {
        "suite": place.suite,
        "algo": place.algo,
        "environments": list(place.environments),
        "suite_size": place.suite_size,
        "seeds": place.seeds,
        "normalized_iqm": place.iqm,
        "interval": place.interval,
        "optimality_gap": place.optimality_gap,
        "performance_profile": list(place.profile),
    }


def _baseline_record(result: BaselineResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "comparisons": [comparison.as_record() for comparison in result.comparisons],
        "missing": [entry.name for entry in result.missing],
        "changed_manifests": list(result.changed_manifests),
    }
