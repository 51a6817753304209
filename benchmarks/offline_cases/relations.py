"""What must hold between stored results of offline learning, whatever the scores themselves are."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning import stored
from offline_cases.cells import CELLS
from offline_cases.sources import KINDS, SOURCES, describe, random_score
from records import D3RLPY, origin
from rl_training.data.datasets.location import datasets_root
from rl_training.experiment.statistics import (
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    probability_of_improvement_interval,
)
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.zoo.leaderboard import SEEDS_FOR_INTERVAL

FILE = "offline-relations.json"
LEAST_CHANCE = 0.45
"""Probability of improvement over the peer from which ours learns as well."""
IMITATED, FAILED = 0.95, 0.5
"""Parts of the way from the random score to the behaviour's return: imitation reaches the first, a failure stays below
the second."""


@dataclass(frozen=True)
class Relation:
    """One statement about two files of results, the second of which may be a dataset instead."""

    kind: str
    """A key of `_RULES`."""
    one: str
    other: str
    """A file of results without its ending, or the id of a dataset."""
    env_id: str = "Pendulum-v1"
    at_step: int | None = None
    """Where the other's score is that of an evaluation during training."""


def _of_peers() -> tuple[Relation, ...]:
    return tuple(
        Relation("matches", cell.name, f"{D3RLPY}-{cell.name}", SOURCES[task].env_id)
        for task, cells in CELLS.items()
        for cell in cells
        if D3RLPY in cell.sides
    )


RELATIONS = (
    Relation("imitates", "bc-pendulum", "pendulum/expert-v0"),
    Relation("imitates", "bc-cartpole", "cartpole/expert-v0", "CartPole-v1"),
    Relation("above", "bc-pendulum-top10", "bc-pendulum-replay"),
    Relation("beats", "td3_bc-pendulum", "bc-pendulum-replay"),
    Relation("beats", "iql-pendulum", "bc-pendulum-replay"),
    Relation("fails", "cql-pendulum-plain_sac", "pendulum/expert-v0"),
    *_of_peers(),
    Relation("reaches", "sac-pendulum-from_dataset_four_updates", "sac-pendulum"),
    Relation("reaches", "sac-pendulum-from_dataset", "sac-pendulum"),
    Relation("reaches", "sac-pendulum-from_dataset_layer_norm", "sac-pendulum"),
    Relation("reaches", "sac-hopper-from_dataset", "sac-hopper-zoo-200k", "Hopper-v5", at_step=100_000),
)


def store_relations(relations: Sequence[Relation], results: Path) -> Iterator[str]:
    """Store which relations hold of the stored results, and yield a line for each that has seeds enough."""
    path = results / FILE
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    datasets = {**known.get("datasets", {}), **_described()}
    found = []
    for relation in relations:
        one, other = _scores(relation.one, results), _scores(relation.other, results, relation.at_step)
        behaviour = datasets.get(relation.other, {}).get("return_mean")
        if len(one) < SEEDS_FOR_INTERVAL or (behaviour is None and len(other) < SEEDS_FOR_INTERVAL):
            continue
        measured = _RULES[relation.kind](one, other or [behaviour], random_score(relation.env_id))
        at_step = {} if relation.at_step is None else {"at_step": relation.at_step}
        of = {"relation": relation.kind, "one": relation.one, "other": relation.other, **at_step}
        found.append({**of, **measured})
        shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in measured.items()}
        yield f"{relation.one} {relation.kind} {relation.other}: {shown}"
    content = {"benchmark": "offline_relations", "datasets": datasets, "relations": found, **origin()}
    write_json_atomically(path, content)


def _described() -> dict[str, Any]:
    """Return what is known of the datasets that are there."""
    return {
        source.dataset(kind): describe(source, kind)
        for source in SOURCES.values()
        for kind in KINDS
        if (datasets_root() / source.dataset(kind)).exists()
    }


def _scores(name: str, results: Path, at_step: int | None = None) -> list[float]:
    runs = stored(results / f"{name}.json")["runs"]
    if at_step is None:
        return [run["eval_return_mean"] for run in runs]
    return [score for run in runs for step, score in run["evaluations"] if step == at_step]


def summary(scores: Sequence[float]) -> dict[str, Any]:
    """Return what is said of the scores of several seeds."""
    low, high = bootstrap_interval(scores) if len(scores) >= SEEDS_FOR_INTERVAL else (None, None)
    return {
        "seeds": len(scores),
        "mean": statistics.fmean(scores),
        "iqm": interquartile_mean(scores),
        "low": low,
        "high": high,
    }


def _part_of_the_way(score: float, behaviour: float, random: float) -> float:
    return (score - random) / (behaviour - random)


def _imitates(one: Sequence[float], other: Sequence[float], random: float) -> dict[str, Any]:
    reached = _part_of_the_way(statistics.fmean(one), other[0], random)
    return {"one_scores": summary(one), "behaviour": other[0], "reached": reached, "holds": reached >= IMITATED}


def _fails(one: Sequence[float], other: Sequence[float], random: float) -> dict[str, Any]:
    measured = summary(one)
    best = measured["high"] if measured["high"] is not None else max(one)
    reached = _part_of_the_way(best, other[0], random)
    return {"one_scores": measured, "behaviour": other[0], "reached_at_most": reached, "holds": reached < FAILED}


def _compared(one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    chances: dict[str, Any] = {"probability_of_improvement": probability_of_improvement(one, other)}
    if min(len(one), len(other)) >= SEEDS_FOR_INTERVAL:
        low, high = probability_of_improvement_interval(one, other)
        chances |= {"probability_low": low, "probability_high": high}
    return {"one_scores": summary(one), "other_scores": summary(other), **chances}


def _above(one: Sequence[float], other: Sequence[float], random: float) -> dict[str, Any]:
    measured = _compared(one, other)
    return {**measured, "holds": measured["one_scores"]["iqm"] > measured["other_scores"]["iqm"]}


def _beats(one: Sequence[float], other: Sequence[float], random: float) -> dict[str, Any]:
    measured = _compared(one, other)
    low, high = measured["one_scores"]["low"], measured["other_scores"]["high"]
    return {**measured, "holds": low is not None and high is not None and low > high}


def _matches(one: Sequence[float], other: Sequence[float], random: float) -> dict[str, Any]:
    measured = _compared(one, other)
    return {**measured, "holds": measured["probability_of_improvement"] >= LEAST_CHANCE}


def _reaches(one: Sequence[float], other: Sequence[float], random: float) -> dict[str, Any]:
    measured = _compared(one, other)
    return {**measured, "holds": measured["one_scores"]["mean"] >= measured["other_scores"]["mean"]}


_RULES = {
    "imitates": _imitates,
    "fails": _fails,
    "above": _above,
    "beats": _beats,
    "matches": _matches,
    "reaches": _reaches,
}
