"""The command `tune`: search settings, and let fresh seeds decide."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rl_training.cli_config import ConfigRequest, TrustCode, _apply_overrides, _jobs, integer_option
from rl_training.cli_output import Output, key_value_lines
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.runtime.tuning.placing import Placing
    from rl_training.runtime.tuning.tuning import TuneResult

logger = logging.getLogger("rl_training")


@dataclasses.dataclass(frozen=True)
class StudyRequest:
    """How settings are searched; for a new study only."""

    space: Annotated[
        Path | None,
        typer.Option("--space", metavar="FILE", help="What to search, as YAML; the algorithm's own space by default."),
    ] = None
    seeds_per_trial: Annotated[
        int | None, integer_option("--seeds-per-trial", "Seeds that every trial is trained on; 2 by default.")
    ] = None
    confirm_seeds: Annotated[
        int | None,
        integer_option("--confirm-seeds", "Fresh seeds for the best settings and the start; 5 by default, 0 for none."),
    ] = None
    finalists: Annotated[
        int | None,
        integer_option("--finalists", "The best trials, which further seeds decide among; 3 by default, 1 for none."),
    ] = None
    sampler: Annotated[
        Literal["tpe", "random", "grid", "cmaes"] | None, typer.Option("--sampler", help="tpe by default.")
    ] = None
    pruner: Annotated[
        Literal["none", "median", "halving", "wilcoxon"] | None, typer.Option("--pruner", help="none by default.")
    ] = None
    objective: Annotated[
        Literal["final", "auc"] | None,
        typer.Option("--objective", help="The final policies' scores, which is the default, or the curves' areas."),
    ] = None
    method: Annotated[
        Literal["search", "pbt"] | None,
        typer.Option("--method", help="Independent trials, which is the default, or a population."),
    ] = None
    generations: Annotated[
        int | None, integer_option("--generations", "With --method pbt: how often members are compared; 10 by default.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return what was given."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def tune(
    request: ConfigRequest,
    study: StudyRequest,
    output: Output,
    trials: Annotated[int | None, integer_option("--trials", "Trials in all; 50 by default.")] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", metavar="NUMBER", help="After so many hours no trial begins any more.")
    ] = None,
    continue_from: Annotated[
        Path | None, typer.Option("--continue", metavar="STUDY", help="Go on with the study in this directory.")
    ] = None,
    trust_code: TrustCode = False,
) -> int:
    """Search settings from a preset or a file, and train the best ones on fresh seeds."""
    from rl_training.experiment.tuning.journal import require_optuna

    require_optuna()
    if request.seeds is not None:
        raise ConfigError("--seeds: trials choose their own; give their number by --seeds-per-trial")
    if trials is not None and trials < 1:
        raise ConfigError(f"--trials: must be an integer >= 1, got {trials}")
    from rl_training.runtime.tuning.placing import Placing

    jobs = "auto" if request.jobs is None else _jobs(request.jobs)
    placing = Placing(jobs, request.executor, request.ray_address, hours)  # type: ignore[arg-type]
    if continue_from is not None:
        _refuse_with_continue(request, study)
        return _run(continue_from, placing, output, trials=trials, trust_code=trust_code)
    plain = dataclasses.replace(request, jobs=None, executor=None, ray_address=None)
    config = _apply_overrides(plain)
    from rl_training.runtime.tuning.tuning import new_study

    choices = study.given()
    _check_method(choices)
    if trials is not None:
        choices["trials"] = trials
    directory = new_study(config, **choices)
    logger.info("study in %s", directory)
    return _run(directory, placing, output, trials=None, written_here=True)


def _check_method(choices: Mapping[str, Any]) -> None:
    """Raise an error for flags that belong to the other method."""
    population = choices.get("method") == "pbt"
    if "generations" in choices and not population:
        raise ConfigError("--generations goes with --method pbt; leave it out, or add that")
    for name in ("sampler", "pruner", "seeds_per_trial", "finalists"):
        if population and name in choices:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} does not go with --method pbt: its members are changed by each other's scores")


def _refuse_with_continue(request: ConfigRequest, study: StudyRequest) -> None:
    """Raise an error for a flag that a study has settled when it began."""
    settled = {**study.given(), **dataclasses.asdict(request)}
    for name in ("jobs", "executor", "ray_address"):
        settled.pop(name)
    for name, value in settled.items():
        if value is not None:
            flag = "--set" if name == "set_values" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} does not go with --continue: the study has settled it; start a new study for it")


def _run(directory: Path, placing: Placing, output: Output, **options: Any) -> int:
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.experiment.tuning.study import read_study
    from rl_training.runtime.tuning.table import make_table
    from rl_training.runtime.tuning.tuning import run_study

    study = read_study(directory)
    table = make_table(dataclasses.replace(study, trials=options["trials"] or study.trials), quiet=output.quiet)
    with contextlib.ExitStack() as stack:
        if table is not None:
            stack.enter_context(table)
            options["watch"] = table.update
        result = run_study(directory, placing, DefaultExperimentManager(), **options)
    return _show(result, output)


def _show(result: TuneResult, output: Output) -> int:
    """Print what a study has come to and return the exit status."""
    record: dict[str, Any] = {"study_dir": result.study_dir, "status": result.status, "trials": len(result.trials)}
    record |= {f"trials_{status}": count for status, count in result.counts.items()}
    if result.best is not None:
        record |= {"best_trial": result.best.number, "best_value": result.best.value, "best_path": result.best_path}
    confirmation = result.confirmation
    if confirmation is not None:
        record |= {
            "confirmed_best": confirmation.best.iqm,
            "confirmed_baseline": confirmation.baseline.iqm,
            "probability_of_improvement": confirmation.probability,
            "optimism": confirmation.optimism,
            "improved": confirmation.improved,
            "verdict": confirmation.sentence,
        }
    settings = {} if result.best is None else dict(result.best.settings)
    output.show({**record, "best_settings": settings}, [*key_value_lines(record), *key_value_lines(settings)])
    go_on = f"axiomrl tune --continue {shlex.quote(str(result.study_dir))}"
    if result.signal is not None:
        logger.warning("interrupted by %s; `%s` goes on", signal.Signals(result.signal).name, go_on)
        return 128 + result.signal
    if result.status == "failed":
        reasons = {trial.error for trial in result.trials if trial.error}
        why = f": {min(reasons)}" if reasons else ""
        logger.error("nothing could be confirmed%s; `%s` tries what is missing again", why, go_on)
        return 1
    return 0
