"""The record behind a study's report: what was tried, how it went, what matters, and what fresh seeds say."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.experiment.sweeps import FAILED, RUNNING
from rl_training.experiment.tuning.confirmation import Confirmation, read_confirmation
from rl_training.experiment.tuning.journal import Trial, read_trials
from rl_training.experiment.tuning.space import SearchSpace
from rl_training.experiment.tuning.study import RUNS, Study, read_study
from rl_training.experiment.tuning.trials import ranked
from rl_training.zoo.studies.finals import place_of, read_finals, score_of
from rl_training.zoo.studies.importances import Importances, measure_importances
from rl_training.zoo.studies.objective import trial_value
from rl_training.zoo.studies.parameters import SearchedParameter, searched_parameters, start_values

EXPORT_VERSION = 1
POPULATION = "pbt"
_NOT_COMPARABLE = "the members of a population change their settings while they learn"


@dataclass(frozen=True)
class TrialResult:
    """A trial as reports show it."""

    trial: Trial
    values: Mapping[str, Any]
    """Its values of the searched parameters; the start has those of its configuration."""
    scores: Mapping[int, float | None]
    """By seed; None for a seed without a score."""
    runs: Mapping[int, Path]
    """The directories of its runs that are still in the study's, by seed."""
    rank: int | None
    """1 for the highest objective; None if it has none, or if it is of an earlier generation."""
    further: Mapping[int, float] = field(default_factory=dict)
    """Scores of a finalist by further seed."""

    @property
    def number(self) -> int:
        """Its number in the study."""
        return self.trial.number

    @property
    def objective(self) -> float | None:
        """Its objective, if it is completed."""
        return self.trial.value

    @property
    def over_all_seeds(self) -> float | None:
        """The objective of a finalist over all seeds that it was trained on; None without further seeds."""
        known = [score for score in self.scores.values() if score is not None]
        return trial_value([*known, *self.further.values()]) if self.further else None

    @property
    def is_start(self) -> bool:
        """Whether it has the settings of the starting configuration."""
        return not self.trial.settings


class HistoryPoint(NamedTuple):
    """The course of a search at one trial."""

    number: int
    objective: float | None
    best: float | None
    """The highest objective so far."""


@dataclass(frozen=True)
class StudyReport:
    """Everything that renderers show."""

    directory: Path
    study: Study
    space: SearchSpace
    parameters: tuple[SearchedParameter, ...]
    trials: tuple[TrialResult, ...]
    """In the order of their numbers."""
    confirmation: Confirmation | None
    importances: Importances
    problems: tuple[str, ...] = ()
    """Parts of the study that cannot be read."""

    @property
    def is_population(self) -> bool:
        """Whether the trials are members of a population."""
        return self.study.method == POPULATION

    @property
    def task(self) -> str:
        """Algorithm and environment."""
        return " on ".join(str(self.study.config.get(key))[:200] for key in ("algo", "env_id"))

    @property
    def planned(self) -> int:
        """How many trials there will be at most."""
        return self.study.trials * (self.study.generations if self.is_population else 1)

    @property
    def counts(self) -> dict[str, int]:
        """How many trials there are of each status."""
        return dict(Counter(result.trial.status for result in self.trials))

    @cached_property
    def ranking(self) -> list[TrialResult]:
        """The trials with a rank, the best first."""
        return sorted((one for one in self.trials if one.rank is not None), key=lambda one: one.rank or 0)

    @property
    def finalists(self) -> list[TrialResult]:
        """The trials that further seeds decide among."""
        several = self.study.finalists > 1 and bool(self.study.final_seeds)
        return self.ranking[: self.study.finalists] if several else []

    @cached_property
    def best(self) -> TrialResult | None:
        """The trial that was confirmed, or else the best one so far: of the finalists, if all have further scores."""
        confirmed = None if self.confirmation is None else self.confirmation.best.trial
        found = next((one for one in self.ranking if one.number == confirmed), None)
        judged = [(one.over_all_seeds, -one.number, one) for one in self.finalists if one.over_all_seeds is not None]
        if found is None and judged and len(judged) == len(self.finalists):
            found = max(judged, key=lambda of_one: of_one[:2])[2]
        return found or (self.ranking[0] if self.ranking else None)

    @property
    def without_score(self) -> list[TrialResult]:
        """The trials without an objective: failed, pruned, in training."""
        return [result for result in self.trials if result.objective is None]

    @cached_property
    def history(self) -> list[HistoryPoint]:
        """The objective of each trial and the best so far; of a population, so far in its generation."""
        points: list[HistoryPoint] = []
        best: float | None = None
        generation: int | None = None
        for result in self.trials:
            if result.trial.generation != generation:
                generation, best = result.trial.generation, None
            if result.objective is not None:
                best = result.objective if best is None else max(best, result.objective)
            points.append(HistoryPoint(result.number, result.objective, best))
        return points

    def lineage(self, number: int) -> list[int]:
        """Return the trials that a member of a population goes back to, the first of them first."""
        known = {result.number: result.trial.parent for result in self.trials}
        found: list[int] = []
        at: int | None = number
        while at in known and at not in found:
            found.append(at)
            at = known[at]
        return found[::-1]

    @property
    def improved(self) -> bool:
        """Whether fresh seeds show that the best settings are better than the start."""
        return self.confirmation is not None and self.confirmation.improved

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        if self.confirmation is not None:
            return self.confirmation.sentence
        go_on = f"`axiomrl tune --continue {shlex.quote(str(self.directory))}`"
        if not self.trials:
            return f"no trial has begun yet; {go_on} begins"
        if self.best is None:
            going_on = self.counts.get(RUNNING, 0)
            told = ", ".join(f"{count} {status}" for status, count in self.counts.items())
            return f"no trial has a score {'yet' if going_on else 'that could be confirmed'}: {told}"
        flatters = f"the score of the best of {len(self.trials)} trials flatters it"
        if not self.study.confirm_seeds:
            return f"nothing is confirmed: the study has no fresh seeds, and {flatters}"
        return f"nothing is confirmed yet, and {flatters}; {go_on} trains it on fresh seeds"

    @property
    def notices(self) -> list[str]:
        """What should be known besides."""
        found = []
        failed = self.counts.get(FAILED, 0)
        if failed:
            found.append(
                f"{failed} of {len(self.trials)} trials failed; they stay in the study and never count as best"
            )
        if self.confirmation is not None and self.confirmation.trials < len(self.trials):
            found.append(
                f"the confirmed trial is the best of the first {self.confirmation.trials} of {len(self.trials)} trials"
            )
        return [*found, *self.problems]

    def as_record(self) -> dict[str, Any]:
        """Return the whole report as plain data."""
        study, config = self.study, self.study.config
        return {
            "kind": "study",
            "export_version": EXPORT_VERSION,
            "study_dir": str(self.directory),
            "verdict": self.verdict,
            "improved": self.improved,
            **{key: _text_or_none(config.get(key)) for key in ("algo", "env_id", "preset")},
            **{key: getattr(study, key) for key in ("method", "sampler", "pruner", "objective", "generations")},
            "seeds": list(study.seeds),
            "final_seeds": list(study.final_seeds),
            "confirm_seeds": list(study.confirm_seeds),
            "created_at_utc": study.created_at_utc,
            "versions": {str(name): _text_or_none(version) for name, version in study.versions.items()},
            "space": self.space.to_data(),
            "planned_trials": self.planned,
            "counts": self.counts,
            "finalists": [result.number for result in self.finalists],
            "best_trial": None if self.best is None else self.best.number,
            "best_lineage": self.lineage(self.best.number) if self.best is not None and self.is_population else None,
            "confirmation": None if self.confirmation is None else self.confirmation.as_record(),
            "importances": self.importances.as_record(),
            "history": [point._asdict() for point in self.history],
            "slices": {parameter.key: self._slice(parameter) for parameter in self.parameters},
            "trials": [_trial_record(result) for result in self.trials],
            "notices": self.notices,
        }

    def _slice(self, parameter: SearchedParameter) -> dict[str, Any]:
        points = [
            {"trial": result.number, "value": result.values[parameter.key], "objective": result.objective}
            for result in self.trials
            if parameter.key in result.values
        ]
        return {"scale": parameter.scale, "points": points}


def build_study_report(directory: Path) -> StudyReport:
    """Read a study and compute everything that a report shows; nothing is written and nothing in it is executed."""
    study = read_study(directory)
    space = study.described_space()
    trials = read_trials(directory)
    start = start_values(space, study.config)
    ranks = _ranks(trials)
    finals = read_finals(directory, study, trials)
    results = tuple(
        _result(trial, ranks.get(trial.number), start, study, directory / RUNS, finals.scores.get(trial.number, {}))
        for trial in trials
    )
    return StudyReport(
        directory=directory,
        study=study,
        space=space,
        parameters=searched_parameters(space, start),
        trials=results,
        confirmation=read_confirmation(directory),
        importances=_importances(study, space, results),
        problems=finals.problems,
    )


def _importances(study: Study, space: SearchSpace, results: Sequence[TrialResult]) -> Importances:
    if study.method == POPULATION:
        return Importances(reason=_NOT_COMPARABLE)
    completed = [(result.values, result.objective) for result in results if result.objective is not None]
    scores = np.array([objective for _, objective in completed], dtype=float)
    return measure_importances(space, [values for values, _ in completed], scores)


def _ranks(trials: Sequence[Trial]) -> dict[int, int]:
    """Return the ranks of completed trials by number; of a population only the latest generation has any."""
    return {trial.number: rank for rank, trial in enumerate(ranked(trials), 1)}


def _result(
    trial: Trial,
    rank: int | None,
    start: Mapping[str, Any],
    study: Study,
    runs: Path,
    further: Mapping[int, float],
) -> TrialResult:
    places = {seed: place_of(record, runs) for seed, record in sorted(trial.runs.items())}
    return TrialResult(
        trial=trial,
        values=dict(trial.settings) or start,
        scores={seed: score_of(record, places[seed], study) for seed, record in sorted(trial.runs.items())},
        runs={seed: place for seed, place in places.items() if place is not None},
        rank=rank,
        further=further,
    )


def _trial_record(result: TrialResult) -> dict[str, Any]:
    trial = result.trial
    return {
        "trial": trial.number,
        "status": trial.status,
        "rank": result.rank,
        "objective": trial.value,
        "scores": {str(seed): score for seed, score in result.scores.items()},
        "further_scores": {str(seed): score for seed, score in result.further.items()},
        "objective_over_all_seeds": result.over_all_seeds,
        "settings": dict(trial.settings),
        "values": dict(result.values),
        "duration_seconds": trial.duration_seconds,
        "error": trial.error,
        "generation": trial.generation,
        "parent": trial.parent,
        "run_dirs": {str(seed): str(path) for seed, path in result.runs.items()},
    }


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)[:1000]
