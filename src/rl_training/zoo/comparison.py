"""Comparison of two sets of scores, and of a leaderboard with an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import ConfigError
from rl_training.experiment.statistics import (
    Interval,
    difference_interval,
    interquartile_mean,
    probability_of_improvement,
    probability_of_improvement_interval,
)
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_json
from rl_training.zoo.entries import Entry, find_entry
from rl_training.zoo.leaderboard import SEEDS_FOR_INTERVAL, SEEDS_FOR_TRUST
from rl_training.zoo.manifests import load_manifests
from rl_training.zoo.run_files import finite

EXPORT_VERSION = 1
"""Version of the JSON export that a baseline is read from."""


class Scored(NamedTuple):
    """The scores of one entry, of this report or of a stored one."""

    name: str
    algo: str
    env_id: str
    preset: str | None
    fingerprint: str
    scores: Mapping[int, float]
    """Score of the final evaluation by seed."""
    trained_on: str
    """The `env_id` of the runs; on the board of a task, that of its suite."""
    tasks: tuple[Scored, ...] = ()
    """Its scores on each task of a suite."""

    @classmethod
    def of(cls, entry: Entry) -> Scored:
        """Return the scores of an entry."""
        scores = {seed: run.score for seed, run in entry.by_seed.items() if run.score is not None}
        tasks = tuple(map(cls.of, entry.tasks))
        about = (entry.name, entry.algo, entry.env_id, entry.preset, entry.fingerprint)
        return cls(*about, scores, entry.trained_on, tasks)

    @property
    def boards(self) -> tuple[Scored, ...]:
        """Its scores on every board: on its environment or suite, and on the suite's tasks."""
        return (self._replace(tasks=()), *self.tasks)


@dataclass(frozen=True)
class Comparison:
    """The result of comparing A with B."""

    a: Scored
    b: Scored
    iqm_a: float
    iqm_b: float
    difference: float
    """Interquartile mean of A minus that of B."""
    difference_interval: Interval | None
    """95% interval of the difference; None if a side has fewer than three seeds."""
    probability: float
    """Probability that a run of A scores above a run of B; ties count half."""
    probability_interval: Interval | None
    tasks: tuple[Comparison, ...] = ()
    """The same for each task of a suite on which both have scores."""

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `no clear difference` or `too few seeds`."""
        if self.difference_interval is None:
            return "too few seeds"
        if self.difference_interval.low > 0:
            return "better"
        return "worse" if self.difference_interval.high < 0 else "no clear difference"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        a, b, fewest = self.a.name, self.b.name, min(len(self.a.scores), len(self.b.scores))
        figures = f"a difference of {self.difference:+,.2f}"
        if self.difference_interval is None:
            return (
                f"{a} cannot be told from {b}: {fewest} seeds on one side, and {SEEDS_FOR_INTERVAL} are the least for "
                f"an interval ({figures})"
            )
        figures += f" (95% interval {self.difference_interval.low:+,.2f} to {self.difference_interval.high:+,.2f})"
        figures += f" and a run scores higher with probability {self.probability:.2f}"
        caution = f"; {fewest} seeds are few" if fewest < SEEDS_FOR_TRUST else ""
        if self.verdict == "no clear difference":
            return f"{a} and {b} show no clear difference on {self.a.env_id}: {figures}{caution}"
        return f"{a} is {self.verdict} than {b} on {self.a.env_id}: {figures}{caution}"

    @property
    def regressions(self) -> list[str]:
        """Sentences about regressions, for a suite also by task."""
        compared = {comparison.a.env_id for comparison in self.tasks}
        gone = [task.env_id for task in self.b.tasks if task.scores and task.env_id not in compared]
        return [
            *(comparison.sentence for comparison in (self, *self.tasks) if comparison.verdict == "worse"),
            *(f"{self.b.name} has a score on {board}, and {self.a.name} has none" for board in gone),
        ]

    def as_record(self) -> dict[str, Any]:
        """Return everything as plain data; keys about a task end in a slash and its name, as in metrics."""
        return {
            "a": self.a.name,
            "b": self.b.name,
            "env_id": self.a.env_id,
            "seeds_a": len(self.a.scores),
            "seeds_b": len(self.b.scores),
            "iqm_a": self.iqm_a,
            "iqm_b": self.iqm_b,
            "difference": self.difference,
            "difference_interval": self.difference_interval,
            "probability_of_improvement": self.probability,
            "probability_interval": self.probability_interval,
            "verdict": self.verdict,
            "sentence": self.sentence,
            **{
                f"{key}/{task.a.env_id.removeprefix(f'{task.a.trained_on}/')}": value
                for task in self.tasks
                for key, value in task.as_record().items()
                if key not in ("a", "b", "env_id")
            },
        }


def compare(a: Scored, b: Scored) -> Comparison:
    """Compare two sets of scores on the same environment."""
    if a.env_id != b.env_id:
        raise ConfigError(f"{a.name} is on {a.env_id} and {b.name} on {b.env_id}; compare entries of one environment")
    for side in (a, b):
        if not side.scores:
            raise ConfigError(f"{side.name} has no completed run with a final evaluation; there is nothing to compare")
    of_a, of_b = list(a.scores.values()), list(b.scores.values())
    enough = min(len(of_a), len(of_b)) >= SEEDS_FOR_INTERVAL
    iqm_a, iqm_b = interquartile_mean(of_a), interquartile_mean(of_b)
    return Comparison(
        a=a,
        b=b,
        iqm_a=iqm_a,
        iqm_b=iqm_b,
        difference=iqm_a - iqm_b,
        difference_interval=difference_interval(of_a, of_b) if enough else None,
        probability=probability_of_improvement(of_a, of_b),
        probability_interval=probability_of_improvement_interval(of_a, of_b) if enough else None,
        tasks=tuple(
            compare(task, other)
            for task in a.tasks
            for other in b.tasks
            if task.env_id == other.env_id and task.scores and other.scores
        ),
    )


# -- baselines -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredLeaderboard:
    """An earlier leaderboard, read from its JSON export."""

    path: Path
    entries: tuple[Scored, ...]
    manifests: Mapping[str, Any]
    """Version and fingerprint of the suites at the time."""

    def changed_manifests(self) -> list[str]:
        """Return sentences about suites whose manifest has changed."""
        return [
            f"the manifest of {manifest.suite} has changed since {self.path}: fingerprint "
            f"{self.manifests[manifest.suite]['fingerprint']} then, {manifest.fingerprint} now"
            for manifest in load_manifests()
            if self.manifests.get(manifest.suite, manifest.identity) != manifest.identity
        ]


@dataclass(frozen=True)
class BaselineResult:
    """The comparison of a leaderboard with its baseline."""

    name: str
    comparisons: tuple[Comparison, ...] = ()
    missing: tuple[Scored, ...] = ()
    """Entries of the baseline without a score in this report."""
    changed_manifests: tuple[str, ...] = ()

    @property
    def regressions(self) -> list[str]:
        """Sentences about entries that became worse or are missing."""
        worse = [sentence for comparison in self.comparisons for sentence in comparison.regressions]
        gone = [
            f"{entry.name} on {entry.env_id} has {len(entry.scores)} seeds in the baseline and no score in this report"
            for entry in self.missing
        ]
        return [*worse, *gone]

    @property
    def undecided(self) -> list[str]:
        """Sentences about pairs with too few seeds for a verdict."""
        return [comparison.sentence for comparison in self.comparisons if comparison.verdict == "too few seeds"]


def compare_with_entry(entries: Sequence[Entry], name: str) -> BaselineResult:
    """Compare an entry with all others on its environment, for a suite also by task."""
    baseline = Scored.of(find_entry(entries, name))
    # If only some boards have scores, these are compared.
    scored = [board for board in baseline.boards if board.scores] or [baseline]
    comparisons = [
        compare(other, board)
        for board in scored
        for other in _boards(entries)
        if other.env_id == board.env_id and other.fingerprint != board.fingerprint and other.scores
    ]
    return BaselineResult(baseline.name, tuple(comparisons))


def compare_with_stored(entries: Sequence[Entry], stored: StoredLeaderboard) -> BaselineResult:
    """Compare every entry with its counterpart in an earlier leaderboard, board by board."""
    earlier = [entry for entry in stored.entries if entry.scores]
    comparisons = []
    missing = {(entry.env_id, entry.fingerprint): entry for entry in earlier}
    for current in _boards(entries):
        counterpart = _counterpart(current, earlier)
        if counterpart is not None and current.scores:
            comparisons.append(compare(current, counterpart))
            missing.pop((counterpart.env_id, counterpart.fingerprint), None)
    return BaselineResult(
        str(stored.path), tuple(comparisons), tuple(missing.values()), tuple(stored.changed_manifests())
    )


def read_leaderboard(path: Path) -> StoredLeaderboard:
    """Read a file written by `leaderboard --output-format json --output FILE`."""
    try:
        content = read_json(path)
        version = content["export_version"]
        entries = tuple(_stored(entry) for entry in content["entries"]) if version == EXPORT_VERSION else ()
        manifests = {
            suite: {"version": entry["version"], "fingerprint": entry["fingerprint"]}
            for suite, entry in content["manifests"].items()
        }
    except FileNotFoundError as error:
        raise ConfigError(f"--baseline {path}: cannot be read ({error.strerror})") from None
    except (UntrustedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UntrustedFileError) and isinstance(error.__cause__, OSError):
            raise ConfigError(f"--baseline: {error}") from None
        raise ConfigError(
            f"--baseline {path}: not a stored leaderboard; "
            "write one by `axiomrl leaderboard --output-format json --output FILE`"
        ) from None
    if version != EXPORT_VERSION:
        raise ConfigError(f"--baseline {path}: export version {version!r}; this release reads {EXPORT_VERSION}")
    return StoredLeaderboard(path, entries, manifests)


def _boards(entries: Sequence[Entry]) -> list[Scored]:
    return [board for entry in entries for board in Scored.of(entry).boards]


def _counterpart(current: Scored, earlier: Sequence[Scored]) -> Scored | None:
    """Return the entry with the same configuration, else the one of the same name: a preset may have changed since."""
    earlier = [entry for entry in earlier if entry.env_id == current.env_id]
    same = [entry for entry in earlier if entry.fingerprint == current.fingerprint]
    alike = [entry for entry in earlier if entry.name == current.name]
    return next(iter([*same, *alike]), None)


def _stored(entry: Mapping[str, Any]) -> Scored:
    scores = {int(seed): finite(score) for seed, score in entry["scores"].items()}
    known = {seed: score for seed, score in scores.items() if score is not None}
    if len(known) < len(scores):
        raise ValueError("a score is no number")
    algo, env_id, preset = entry["algo"], entry["env_id"], entry["preset"]
    trained_on = str(entry.get("trained_on", env_id))
    return Scored(str(entry["name"]), str(algo), str(env_id), preset, str(entry["fingerprint"]), known, trained_on)
