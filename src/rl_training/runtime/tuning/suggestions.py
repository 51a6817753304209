"""What a trial is to try: Optuna's samplers over a search space, each suggestion with a random stream of its own.

A suggestion depends on the study's seed, the trial's number and the results so far, never on the process that asks: a
study that was interrupted goes on with the suggestions it would have made.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.errors import MissingExtraError
from rl_training.experiment.tuning.domains import Choice, Range
from rl_training.experiment.tuning.space import Parameter, SearchSpace
from rl_training.experiment.tuning.study import Sampler

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 5
"""Random trials before TPE's model decides; a tenth of the trials if that is more."""


@dataclass(frozen=True)
class Suggestions:
    """Suggests the settings of trials."""

    space: SearchSpace
    start: Mapping[str, Any]
    """The starting configuration's values of the parameters, by dotted key."""
    sampler: Sampler
    seed: int
    trials: int

    def ask(self, study: optuna.Study) -> tuple[optuna.Trial, dict[str, Any]]:
        """Return a new trial and its values by dotted key; the first trial is the start itself, without any."""
        known = study.get_trials(deepcopy=False)
        # A process may have been killed before it began the trial that it had put in line.
        in_line = [trial.number for trial in known if trial.state.name == "WAITING"]
        number = in_line[0] if in_line else len(known)
        generator = np.random.default_rng([self.seed, number])
        fixed = self._fixed(study, number, generator)
        if fixed is not None and not in_line:
            study.enqueue_trial(self._stored(fixed))
        values: dict[str, Any] = {}
        with _quiet():
            study.sampler = self._make_sampler(int(generator.integers(2**31)))
            trial = study.ask()
            for parameter in self.space.parameters:
                if number == 0 and parameter.key in (fixed or {}):
                    _suggest(trial, parameter)
                elif number > 0 and parameter.is_active(values):
                    values[parameter.key] = _value(parameter, _suggest(trial, parameter))
        return trial, values

    def number_of_trials(self) -> int:
        """Return how many trials there can be: a grid has no more points."""
        return min(self.trials, len(self._grid()) + 1) if self.sampler == "grid" else self.trials

    def _make_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        import optuna

        if self.sampler == "tpe":
            startup = max(STARTUP_TRIALS, self.trials // 10)
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, multivariate=True, group=True)
        return optuna.samplers.RandomSampler(seed=seed)

    def _fixed(self, study: optuna.Study, number: int, generator: np.random.Generator) -> Mapping[str, Any] | None:
        """Return values that Optuna's sampler does not choose; None where it chooses all."""
        if number == 0:  # what lies in the space of the start's values, so that samplers learn from the first trial too
            return {
                parameter.key: self.start[parameter.key]
                for parameter in self.space.parameters
                if parameter.key in self.start and parameter.domain.contains(self.start[parameter.key])
            }
        if self.sampler == "grid":
            return self._grid()[number - 1]
        return self._evolved(study, generator) if self.sampler == "cmaes" else None

    def _stored(self, values: Mapping[str, Any]) -> dict[str, Any]:
        known = {parameter.key: parameter for parameter in self.space.parameters}
        return {name_of(known[key]): _stored(known[key], value) for key, value in values.items()}

    def _grid(self) -> list[dict[str, Any]]:
        """Return all combinations in an order that the seed decides, so that few trials cover all of it."""
        points = self.space.grid()
        order = np.random.default_rng([self.seed, len(points)]).permutation(len(points))
        return [points[index] for index in order]

    def _evolved(self, study: optuna.Study, generator: np.random.Generator) -> dict[str, Any]:
        """Return the values of numbers that a covariance matrix adaptation suggests, in the place of Optuna's own.

        That one keeps its state in the journal as a pickle, which whoever opens a study would execute; here the state
        is computed from the results again. What is no number, or depends on another parameter, is drawn at random.
        """
        try:
            from cmaes import CMA
        except ImportError as error:
            raise MissingExtraError("--sampler cmaes", "tune") from error
        found = [(one, one.domain) for one in self.space.parameters if not one.when]
        numbers = [(name_of(one), one.key, domain) for one, domain in found if isinstance(domain, Range)]
        if len(numbers) < 2:  # it has nothing to adapt
            return {key: _from_unit(domain, float(generator.random())) for _, key, domain in numbers}
        bounds = np.tile([0.0, 1.0], (len(numbers), 1))
        seed = int(generator.integers(2**31))
        evolution = CMA(mean=np.full(len(numbers), 0.5), sigma=1 / 6, bounds=bounds, seed=seed)
        results = [
            (np.array([_to_unit(domain, trial.params[name]) for name, _, domain in numbers]), -trial.value)
            for trial in study.get_trials(deepcopy=False)
            if trial.value is not None and all(name in trial.params for name, _, _ in numbers)
        ]
        size = evolution.population_size
        for first in range(0, len(results) - size + 1, size):
            evolution.tell(results[first : first + size])
        point = evolution.ask()
        return {key: _from_unit(domain, float(at)) for (_, key, domain), at in zip(numbers, point, strict=True)}


def name_of(parameter: Parameter) -> str:
    """Return what the journal calls a parameter."""
    one_minus = isinstance(parameter.domain, Range) and parameter.domain.scale == "one_minus_log"
    return f"1 - {parameter.key}" if one_minus else parameter.key


def _suggest(trial: optuna.Trial, parameter: Parameter) -> Any:
    """Return the stored form of a value that Optuna suggests."""
    name, domain = name_of(parameter), parameter.domain
    if isinstance(domain, Choice):
        return trial.suggest_categorical(name, list(domain.labels))
    low, high = domain.bounds
    if domain.integer:
        return trial.suggest_int(name, int(low), int(high), log=domain.logarithmic, step=int(domain.step or 1))
    return trial.suggest_float(name, low, high, log=domain.logarithmic, step=domain.step)


def _stored(parameter: Parameter, value: Any) -> Any:
    """Return a value as the journal stores it: a choice as text, since Optuna knows no lists and mappings."""
    domain = parameter.domain
    if isinstance(domain, Range):
        return domain.coordinate(value)
    place = domain.index(value)
    assert place is not None
    return domain.labels[place]


def _value(parameter: Parameter, stored: Any) -> Any:
    """Return the value that a stored one stands for."""
    domain = parameter.domain
    return domain.value_at(stored) if isinstance(domain, Range) else domain.values[domain.labels.index(stored)]


def _to_unit(domain: Range, stored: float) -> float:
    """Return where a stored number lies in its range, from 0 to 1."""
    low, high, place = _scaled(domain, *domain.bounds, stored)
    return (place - low) / (high - low)


def _from_unit(domain: Range, place: float) -> Any:
    """Return the value at a place of the range."""
    low, high = _scaled(domain, *domain.bounds)
    number = low + min(max(place, 0.0), 1.0) * (high - low)
    value = domain.value_at(math.exp(number) if domain.logarithmic else number)
    return value if domain.size is None else min(domain.values, key=lambda one: abs(one - value))


def _scaled(domain: Range, *numbers: float) -> list[float]:
    return [math.log(number) for number in numbers] if domain.logarithmic else list(numbers)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out Optuna's remarks on parts that it calls experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
