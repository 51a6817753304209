"""The directory of a study, and the file that says what is searched and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from annotated_types import Ge, MinLen

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.configuration.safe_yaml import parse_yaml
from rl_training.experiment.configuration.validation import check_value, raise_problems
from rl_training.experiment.own_code.user_code import LoadedFrom
from rl_training.experiment.registry import admit_algorithm
from rl_training.experiment.storage.files import replace_text, storage_errors
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_text
from rl_training.experiment.tuning.space import SearchSpace
from rl_training.experiment.tuning.space_files import described_space, space_from_data

STUDY = "study.yaml"
JOURNAL = "journal.log"
RUNS = "runs"
FINALS, CONFIRMING = "finals", "confirmation"
"""The directories of the runs on the finalists' further seeds, and on fresh seeds, one below it for each trial."""
BEST = "best.yaml"
CONFIRMATION = "confirmation.json"
SCHEMA_VERSION = 1

Method = Literal["search", "pbt"]
Sampler = Literal["tpe", "random", "grid", "cmaes"]
Pruner = Literal["none", "median", "halving", "wilcoxon"]
Objective = Literal["final", "auc"]
Seeds = Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]


@dataclass(frozen=True)
class Study:
    """What is searched and how: everything that the results depend on."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    config: dict[str, Any]
    """The configuration to start from, complete, as plain data; its seed is the root of all suggestions."""
    space: dict[str, Any]
    """The search space as plain data."""
    trials: Annotated[int, Ge(1)]
    seeds: Seeds
    """On which every trial is trained."""
    confirm_seeds: tuple[Annotated[int, Ge(0)], ...]
    """On which the best settings and the start are trained at the end; no trial saw them."""
    created_at_utc: str
    finalists: Annotated[int, Ge(1)] = 1
    """The best so many trials are trained on further seeds, which decide among them."""
    final_seeds: tuple[Annotated[int, Ge(0)], ...] = ()
    method: Method = "search"
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    objective: Objective = "final"
    generations: Annotated[int, Ge(1)] = 1
    """Of a population: how many times its members are compared."""
    versions: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of the packages that suggestions and results depend on."""
    schema_version: int = SCHEMA_VERSION

    def start(self, loaded: LoadedFrom | None = None) -> TrainConfig:
        """Return the configuration to start from."""
        admit_algorithm(self.config.get("algo"), loaded)
        return validate_config(self.config)

    def search_space(self, start: TrainConfig) -> SearchSpace:
        """Return the search space, checked against the starting configuration."""
        return space_from_data(self.space, start, STUDY)

    def described_space(self) -> SearchSpace:
        """Return the search space as it is described, for reports: nothing is checked that needs the algorithm."""
        return described_space(self.space, STUDY)


def with_settings(start: TrainConfig, space: SearchSpace, settings: Mapping[str, Any]) -> TrainConfig:
    """Return the starting configuration with a trial's settings; the first trial has none."""
    return space.apply(start, settings) if settings else start


def write_study(directory: Path, study: Study) -> None:
    """Write the file of a study."""
    record = dataclasses.asdict(study)
    record |= {name: list(getattr(study, name)) for name in ("seeds", "final_seeds", "confirm_seeds")}
    with storage_errors("the study", directory):
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(directory / STUDY, yaml.safe_dump(record, sort_keys=False, allow_unicode=True))


def is_study(directory: Path) -> bool:
    """Return whether a directory is that of a study."""
    return (directory / STUDY).is_file()


def read_study(directory: Path) -> Study:
    """Return the study in a directory; raise an error if there is none, or if its file is damaged."""
    path = directory / STUDY
    try:
        text = read_text(path)
    except (FileNotFoundError, UntrustedFileError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{path} ")
        raise ConfigError(
            f"{directory}: no study can be read there ({STUDY}: {reason}); give the directory that `axiomrl tune` made"
        ) from error
    record = parse_yaml(text, str(path))
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: schema version {version!r:.40}, this release reads {SCHEMA_VERSION}; use the one that wrote it"
        )
    study, problems = check_value(Study, record, ())
    raise_problems(problems, lambda _: str(path))
    seen = {*study.seeds, *study.final_seeds} & set(study.confirm_seeds)
    if seen:
        raise ConfigError(f"{path}: confirm_seeds: {min(seen)} is a seed of the trials too; fresh seeds must decide")
    return study
