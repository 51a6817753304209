"""Fresh seeds decide: the best settings of a search and the start are trained on seeds that no trial saw."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import RunFailure
from rl_training.experiment.benchmarking import read_summary, run_place
from rl_training.experiment.config import TrainConfig, config_to_dict
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.runs import utc_now
from rl_training.experiment.storage.files import replace_text, storage_errors
from rl_training.experiment.sweeps import COMPLETED, BenchmarkRunRecord
from rl_training.experiment.tuning.confirmation import Confirmation, Side, write_confirmation
from rl_training.experiment.tuning.journal import Trial
from rl_training.experiment.tuning.study import BEST, CONFIRMING, FINALS, RUNS, Study
from rl_training.experiment.tuning.trials import ranked
from rl_training.zoo.studies.objective import seed_score, trial_value

logger = logging.getLogger("rl_training")


class Interrupted(Exception):
    """Trainings ended before their results were complete; `signal` says why, None after a failure."""

    def __init__(self, signal: int | None) -> None:
        self.signal = signal


@dataclass(frozen=True)
class LastRuns:
    """The trainings after the search: of the finalists on further seeds, and of the winner on fresh ones."""

    directory: Path
    study: Study
    manager: ExperimentManager
    configs: Callable[[Trial], TrainConfig]
    """Returns the configuration of a trial."""
    benchmark: Mapping[str, Any]
    """How their seeds are executed."""

    def winner(self, trials: Sequence[Trial]) -> Trial:
        """Return the best trial, with its objective over all seeds that it was trained on.

        The few best trials of a search are mostly the luckiest on its seeds; further ones tell them apart.
        """
        finalists = ranked(trials)[: self.study.finalists]
        if len(finalists) < 2 or not self.study.final_seeds:
            return finalists[0]
        judged = []
        for trial in finalists:
            known = [self._score(run, self.directory / RUNS) for run in trial.runs.values()]
            further = self._scores(trial, FINALS, self.study.final_seeds)
            judged.append(dataclasses.replace(trial, value=trial_value([*known, *further.values()])))
        return ranked(judged)[0]

    def confirm(self, best: Trial, trials: Sequence[Trial]) -> Confirmation:
        """Train the best trial and the first on fresh seeds, and write and return the result."""
        baseline = trials[0]
        sides: dict[int, Side] = {}
        for trial in {baseline.number: baseline, best.number: best}.values():
            if trial.value is None:
                logger.warning("the start has no score (%s); it is trained on fresh seeds all the same", trial.status)
            scores = self._scores(trial, CONFIRMING, self.study.confirm_seeds)
            sides[trial.number] = Side(trial.number, trial.value, scores)
        confirmation = Confirmation(sides[best.number], sides[baseline.number], len(trials))
        write_confirmation(self.directory, confirmation)
        logger.info("%s", confirmation.sentence)
        return confirmation

    def _scores(self, trial: Trial, folder: str, seeds: Sequence[int]) -> dict[int, float]:
        """Return a trial's scores on some seeds, after training those that are missing."""
        place = self.directory / folder / f"trial-{trial.number}"
        config = dataclasses.replace(
            self.configs(trial), output_dir=place, benchmark={**self.benchmark, "seeds": list(seeds)}
        )
        earlier = sorted(place.glob("benchmark_summary__*.json"))
        logger.info("trial %d on %d %s seeds", trial.number, len(seeds), "fresh" if folder == CONFIRMING else "further")
        runner = self.manager.setup_runner(config, continue_from=earlier[-1] if earlier else None, trust_code=True)
        result = runner.run()
        assert result.benchmark_summary_path is not None
        if result.status != COMPLETED:
            raise Interrupted(result.signal)
        try:
            records = read_summary(result.benchmark_summary_path).runs
            return {record.seed: self._score(record, place) for record in records}
        except RunFailure as error:
            logger.error("trial %d: %s", trial.number, error)
            raise Interrupted(None) from error

    def _score(self, record: BenchmarkRunRecord, place: Path) -> float:
        """Return the score of a run; the study may have been moved since its record was written."""
        if record.run_dir is not None:
            record = dataclasses.replace(record, run_dir=run_place(record.run_dir, place))
        return seed_score(self.study.objective, record)


def write_best(
    directory: Path, study: Study, config: TrainConfig, best: Trial, confirmation: Confirmation | None
) -> None:
    """Write the best settings as a configuration that `train` takes, with where they come from."""
    settings = [f"#   {key}: {value}" for key, value in best.settings.items()] or ["#   nothing"]
    lines = [
        f"# Trial {best.number} of the study {directory.name}, written {utc_now()}.",
        f"# It changes of the start:\n{chr(10).join(settings)}",
        f"# Objective on the seeds of the search: {best.value:g}.",
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
