"""Where the runs of trials are, and their scores: on the seeds of the search, and on the finalists' further ones.

A study may be somebody else's, or have been moved: only directories inside of it are looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rl_training.errors import AxiomError
from rl_training.experiment.benchmarking import read_summary
from rl_training.experiment.sweeps import COMPLETED, BenchmarkRunRecord
from rl_training.experiment.tuning.journal import Trial
from rl_training.experiment.tuning.study import FINALS, Study
from rl_training.experiment.tuning.trials import ranked
from rl_training.zoo.studies.objective import seed_score


class Finals(NamedTuple):
    """What further seeds say about the finalists."""

    scores: Mapping[int, Mapping[int, float]]
    """By trial and seed; trials without complete results are left out."""
    problems: tuple[str, ...]
    """Results that cannot be read."""


def read_finals(directory: Path, study: Study, trials: Sequence[Trial]) -> Finals:
    """Return the scores of the finalists on further seeds, as far as there are any."""
    scores: dict[int, Mapping[int, float]] = {}
    problems = []
    for trial in ranked(trials)[: study.finalists] if study.final_seeds else ():
        place = directory / FINALS / f"trial-{trial.number}"
        summaries = sorted(place.glob("benchmark_summary__*.json"))
        if not summaries:
            continue
        try:
            runs = {record.seed: record for record in read_summary(summaries[-1]).runs}
        except AxiomError as error:
            problems.append(f"trial {trial.number} on further seeds: {error}")
            continue
        found = {seed: score_of(run, place_of(run, place), study) for seed, run in runs.items()}
        known = {seed: score for seed, score in found.items() if score is not None}
        if set(study.final_seeds) <= known.keys():
            scores[trial.number] = {seed: known[seed] for seed in study.final_seeds}
    return Finals(scores, tuple(problems))


def place_of(record: BenchmarkRunRecord, folder: Path) -> Path | None:
    """Return where a run is now in a folder of the study; None if it is not there."""
    name = "" if record.run_dir is None else record.run_dir.name
    return folder / name if name not in ("", "..") and (folder / name).is_dir() else None


def score_of(record: BenchmarkRunRecord, place: Path | None, study: Study) -> float | None:
    """Return the score of a run; None if it has none, or if its files are needed and are not there."""
    if record.status != COMPLETED or (study.objective == "auc" and place is None):
        return None
    try:
        return seed_score(study.objective, dataclasses.replace(record, run_dir=place))
    except AxiomError:  # it diverged, or its files are damaged
        return None
