"""Fresh seeds decide: the best settings of a search and the start are trained on seeds that no trial saw."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import RunFailure
from rl_training.experiment.benchmarking import read_summary, run_place
from rl_training.experiment.config import TrainConfig, config_to_dict
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.runs import utc_now
from rl_training.experiment.storage.files import replace_text, storage_errors
from rl_training.experiment.sweeps import COMPLETED
from rl_training.experiment.tuning.confirmation import Confirmation, Side, write_confirmation
from rl_training.experiment.tuning.journal import Trial
from rl_training.experiment.tuning.study import BEST, Study
from rl_training.zoo.studies.objective import seed_score

logger = logging.getLogger("rl_training")

CONFIRMING = "confirmation"
"""The directory of the runs on fresh seeds, one below it for each trial."""


def confirm(
    directory: Path,
    study: Study,
    configs: Callable[[Trial], TrainConfig],
    best: Trial,
    trials: Sequence[Trial],
    manager: ExperimentManager,
    benchmark: Mapping[str, Any],
) -> tuple[Confirmation | None, int | None]:
    """Train the best trial and the first on fresh seeds and write the result; without one return the signal, if any.

    `configs` returns the configuration of a trial.
    """
    baseline = trials[0]
    sides: dict[int, Side] = {}
    for trial in {baseline.number: baseline, best.number: best}.values():
        if trial.number == baseline.number and baseline.value is None:
            logger.warning(
                "the start itself has no score (%s); it is trained on fresh seeds all the same", trial.status
            )
        scores, signal = _fresh_scores(directory, study, configs(trial), trial, manager, benchmark)
        if scores is None:
            return None, signal
        sides[trial.number] = Side(trial.number, trial.value, scores)
    confirmation = Confirmation(sides[best.number], sides[baseline.number], len(trials))
    write_confirmation(directory, confirmation)
    logger.info("%s", confirmation.sentence)
    return confirmation, None


def _fresh_scores(
    directory: Path,
    study: Study,
    config: TrainConfig,
    trial: Trial,
    manager: ExperimentManager,
    benchmark: Mapping[str, Any],
) -> tuple[dict[int, float] | None, int | None]:
    """Return a trial's scores by fresh seed, training those that are missing, or the signal that came meanwhile."""
    place = directory / CONFIRMING / f"trial-{trial.number}"
    config = dataclasses.replace(
        config,
        output_dir=place,
        benchmark={**benchmark, "seeds": list(study.confirm_seeds)},
    )
    earlier = sorted(place.glob("benchmark_summary__*.json"))
    logger.info("trial %d on %d fresh seeds", trial.number, len(study.confirm_seeds))
    result = manager.setup_runner(config, continue_from=earlier[-1] if earlier else None, trust_code=True).run()
    assert result.benchmark_summary_path is not None
    if result.status != COMPLETED:
        return None, result.signal
    scores: dict[int, float] = {}
    for record in read_summary(result.benchmark_summary_path).runs:
        if record.run_dir is not None:
            record = dataclasses.replace(record, run_dir=run_place(record.run_dir, place))
        try:
            scores[record.seed] = seed_score(study.objective, record)
        except RunFailure as error:
            logger.error("trial %d on fresh seeds: %s", trial.number, error)
            return None, None
    return scores, None


def write_best(
    directory: Path, study: Study, config: TrainConfig, best: Trial, confirmation: Confirmation | None
) -> None:
    """Write the best settings as a configuration that `train` takes, with where they come from."""
    settings = [f"#   {key}: {value}" for key, value in best.settings.items()] or ["#   nothing"]
    lines = [
        f"# Trial {best.number} of the study {directory.name}, written {utc_now()}.",
        f"# It changes of the start:\n{chr(10).join(settings)}",
        f"# Objective on the seeds of the search {', '.join(map(str, study.seeds))}: {best.value:g}.",
    ]
    if confirmation is None:
        lines.append("# Not confirmed on fresh seeds: the objective is that of the best of many and flatters it.")
    else:
        fresh = ", ".join(map(str, confirmation.best.scores))
        lines += [
            f"# On the fresh seeds {fresh}: {confirmation.best.iqm:g}; optimism {confirmation.optimism:g}.",
            f"# {confirmation.sentence[0].upper()}{confirmation.sentence[1:]}.",
        ]
    lines += [f"# Versions: {', '.join(f'{name} {version}' for name, version in study.versions.items() if version)}."]
    text = yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True)
    with storage_errors("the best settings", directory):
        replace_text(directory / BEST, "\n".join(lines) + "\n" + text)
