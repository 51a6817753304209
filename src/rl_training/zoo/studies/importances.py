"""How much each parameter of a study matters for a trial to be among the best, and how much of that is chance.

The importance is that of PED-ANOVA (Watanabe, Bansal and Hutter 2023, arXiv 2304.10255): how much the distribution of a
parameter's values among the best trials differs from that among all. It is never zero, even for a parameter that does
nothing; so the scores are also shuffled among the trials, and what the most important parameter reaches then is the
level of chance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rl_training.experiment.tuning.domains import Choice, Domain
from rl_training.experiment.tuning.journal import require_optuna
from rl_training.experiment.tuning.space import SearchSpace

if TYPE_CHECKING:
    import optuna

FEWEST_TRIALS = 10
"""Completed trials below which there are no importances."""
_FEWEST_BEST = 5  # Optuna's own advice
_SHARE_OF_BEST = 0.1
SHUFFLES = 39
"""With one shuffle more extreme, the probability of the result by chance is 2 / 40."""


class Importance(NamedTuple):
    """The importance of one parameter."""

    key: str
    share: float
    """Its part of the sum over all parameters."""
    beyond_chance: bool
    """Whether it is above the level of chance, with an error probability of 5 % for all parameters together."""


@dataclass(frozen=True)
class Importances:
    """The importances of a study, the highest first, or why there are none."""

    found: tuple[Importance, ...] = ()
    chance: float | None = None
    """The level of chance, on the same scale as the shares."""
    reason: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "reason": self.reason,
            "chance": self.chance,
            "parameters": [importance._asdict() for importance in self.found],
        }


def measure_importances(space: SearchSpace, settings: Sequence[Mapping[str, Any]], scores: np.ndarray) -> Importances:
    """Return the importances of the parameters, given settings and score of each completed trial."""
    reason = _obstacle(space, scores)
    if reason is not None:
        return Importances(reason=reason)
    require_optuna()
    from optuna.importance import PedAnovaImportanceEvaluator

    quantile = max(_SHARE_OF_BEST, _FEWEST_BEST / len(scores))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=quantile)
    study = _as_optuna(space, settings)

    def evaluate(losses: np.ndarray) -> dict[str, float]:
        return evaluator.evaluate(study, target=lambda trial: float(losses[trial.number]))

    generator = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = evaluate(-scores)
        by_chance = sorted(max(evaluate(-generator.permutation(scores)).values()) for _ in range(SHUFFLES))
    total, level = sum(raw.values()), by_chance[-2]
    if not total > 0 or not math.isfinite(total + level):
        return Importances(reason="the best trials cannot be told from the others: most have the same score")
    ordered = sorted(raw.items(), key=lambda item: (-item[1], space.keys.index(item[0])))
    return Importances(
        tuple(Importance(key, value / total, value >= level) for key, value in ordered), chance=level / total
    )


def _obstacle(space: SearchSpace, scores: np.ndarray) -> str | None:
    """Return why nothing can be said about importances, None if something can."""
    if len(space.keys) < 2:
        return "a single parameter is searched"
    if len(scores) < FEWEST_TRIALS:
        return f"they need at least {FEWEST_TRIALS} completed trials, and there are {len(scores)}"
    if np.all(scores == scores[0]):
        return "all completed trials have the same score"
    return None


def _as_optuna(space: SearchSpace, settings: Sequence[Mapping[str, Any]]) -> optuna.Study:
    """Return trials in memory; values outside of the space are left out, as those of parameters that are not active."""
    import optuna

    study = optuna.create_study()
    for values in settings:
        inside = [
            parameter
            for parameter in space.parameters
            if parameter.key in values and parameter.domain.contains(values[parameter.key])
        ]
        study.add_trial(
            optuna.create_trial(
                params={one.key: _stored(one.domain, values[one.key]) for one in inside},
                distributions={one.key: _distribution(one.domain) for one in inside},
                value=0.0,  # given with every evaluation
            )
        )
    return study


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Choice):
        return CategoricalDistribution(range(domain.size))
    low, high = domain.bounds
    if domain.integer:
        return IntDistribution(int(low), int(high), log=domain.logarithmic, step=int(domain.step or 1))
    return FloatDistribution(low, high, log=domain.logarithmic, step=domain.step)


def _stored(domain: Domain, value: Any) -> Any:
    if isinstance(domain, Choice):
        return domain.index(value)
    low, high = domain.bounds
    coordinate = min(max(domain.coordinate(value), low), high)
    return int(coordinate) if domain.integer else float(coordinate)
