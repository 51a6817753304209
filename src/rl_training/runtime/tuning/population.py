"""Population-based training (Jaderberg et al. 2017, arXiv 1711.09846): members that learn from the better ones.

All members train for a part of the horizon, a generation, and are compared. Those in the lowest quarter then go on from
a checkpoint of one in the highest quarter, a fork with its lineage, with settings that are changed a little. In the
journal each member is a new trial in each generation. The study's seed and the scores decide everything, never who
finishes first.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.fork_rules import FREE
from rl_training.experiment.configuration.forks import fork_rule
from rl_training.experiment.tuning.domains import Range
from rl_training.experiment.tuning.journal import GENERATION, OWNER, PARENT, SETTINGS, Trial, as_trial
from rl_training.experiment.tuning.space import Parameter, SearchSpace
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.sweep.sweep_setup import SeedRunner
from rl_training.runtime.tuning.search import Active, Search

logger = logging.getLogger("rl_training")

QUARTER = 4
"""One in so many members is replaced after a generation."""
FACTORS = (0.8, 1.25)
"""By which a number is multiplied when settings are changed."""
DRAWN_ANEW = 0.25
"""Probability that a parameter is drawn anew instead."""
FEWEST_MEMBERS = 2


def fit_for_forks(space: SearchSpace, start: TrainConfig, *, given: bool) -> SearchSpace:
    """Return the part of a space that forks can change; a space that the user `given` must consist of nothing else."""
    fixed = {parameter.key: fork_rule(start, parameter.key) for parameter in space.parameters}
    fixed = {key: rule for key, rule in fixed.items() if rule != FREE}
    if given and fixed:
        reason = "--method pbt changes settings of runs in progress, and not this one"
        raise ConfigError([f"--space: {key}: {reason}: {rule}; remove it" for key, rule in fixed.items()])
    kept = [one for one in space.parameters if one.key not in fixed and not fixed.keys() & one.when.keys()]
    if not kept:
        raise ConfigError("--method pbt: forks can change no parameter of the space; give others by --space")
    if fixed:
        logger.info("--method pbt leaves out what runs in progress cannot change: %s", ", ".join(fixed))
    return SearchSpace(tuple(kept))


def check_population(members: int, generations: int, start: TrainConfig) -> None:
    """Raise an error for a population that cannot learn from itself."""
    if members < FEWEST_MEMBERS:
        raise ConfigError(f"--trials: a population has at least {FEWEST_MEMBERS} members, got {members}")
    if generations < 2:
        raise ConfigError(f"--generations: must be an integer >= 2, got {generations}")
    if start.total_timesteps < 2 * generations:
        raise ConfigError(
            f"--generations: {generations} are too many for {start.total_timesteps} steps; a generation has several"
        )


class StopAt(Callback):
    """Ends a member's run at the end of its generation."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_start(self, event: TrainingEvent) -> None:
        """End a run at once that was killed just before its end."""
        self._watch(event)

    def on_update_end(self, event: TrainingEvent) -> None:
        """End the run when it has reached the step."""
        self._watch(event)

    def _watch(self, event: TrainingEvent) -> None:
        if self._step <= event.step < event.total_timesteps:
            event.request_stop("its generation has ended")


class Population(Search):
    """The members of a population, generation after generation."""

    def _seeds_of(self, number: int) -> Sequence[int]:
        return (self._study.seeds[number % self._members],)

    @property
    def _members(self) -> int:
        return len(self._study.seeds)

    def _ask(self) -> Active | None:
        """Begin a member's next generation when all members have ended the one before."""
        trials = [as_trial(frozen) for frozen in self._journal.get_trials(deepcopy=False)]
        generation, member = divmod(len(trials), self._members)
        if generation >= self._study.generations or self._is_late():
            return None
        before = trials[(generation - 1) * self._members : generation * self._members] if generation else []
        if any(trial.status == "running" for trial in before):
            return None
        if before and all(trial.value is None for trial in before):
            return None  # nobody is left to learn from
        random = Random(f"{self._start.seed} {generation} {member}")
        parent, settings = self._plan(before, member, random)
        trial = self._journal.ask()
        trial.set_user_attr(OWNER, self._owner)
        trial.set_user_attr(GENERATION, generation)
        trial.set_user_attr(PARENT, None if parent is None else parent.number)
        trial.set_user_attr(SETTINGS, settings)
        return self._activate(trial, settings, {})

    def _plan(self, before: Sequence[Trial], member: int, random: Random) -> tuple[Trial | None, dict[str, Any]]:
        """Return what a member goes on from, and its settings."""
        space = self._suggestions.space
        if not before:
            return None, {} if member == 0 else space.overrides(space.draw(random))
        ranked = sorted(before, key=lambda trial: (trial.value is None, -(trial.value or 0.0), trial.number))
        quarter = max(1, len(ranked) // QUARTER)
        own = before[member]
        if own not in ranked[-quarter:] and own.value is not None:
            return own, dict(own.settings)
        parent = random.choice([trial for trial in ranked[:quarter] if trial.value is not None])
        return parent, space.overrides(changed(space, dict(parent.settings) or dict(self._suggestions.start), random))

    def _runner(self, active: Active, seed: int, label: str) -> SeedRunner:
        """Return what trains a member for one generation."""
        runner = super()._runner(active, seed, label)
        generation = active.trial.user_attrs[GENERATION]
        end = self._start.total_timesteps * (generation + 1) // self._study.generations
        runner = dataclasses.replace(runner, callbacks=(*runner.callbacks, StopAt(end)))
        number = active.trial.user_attrs[PARENT]
        if number is None or runner.resume_from is not None:
            return runner
        parent = as_trial(self._journal.get_trials(deepcopy=False)[number])
        (record,) = parent.runs.values()
        assert record.run_dir is not None
        changes = {"tags": list(active.config.tags), **active.trial.user_attrs[SETTINGS]}
        return dataclasses.replace(runner, fork_of=self._place(record.run_dir), changes=changes)


def changed(space: SearchSpace, values: Mapping[str, Any], random: Random) -> dict[str, Any]:
    """Return values near others: numbers a little larger or smaller, now and then something new."""
    found: dict[str, Any] = {}
    for parameter in space.parameters:
        if parameter.is_active(found):
            found[parameter.key] = _changed(parameter, values.get(parameter.key), random)
    return found


def _changed(parameter: Parameter, value: Any, random: Random) -> Any:
    domain = parameter.domain
    if not domain.contains(value) or random.random() < DRAWN_ANEW:
        return domain.draw(random)
    if not isinstance(domain, Range):
        return value
    low, high = domain.bounds
    moved = domain.value_at(min(max(domain.coordinate(value) * random.choice(FACTORS), low), high))
    return moved if domain.size is None else min(domain.values, key=lambda one: abs(one - moved))
