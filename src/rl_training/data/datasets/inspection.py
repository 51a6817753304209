"""Looks at all episodes of a dataset: their lengths and returns, and everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_training.data.datasets.dataset import Dataset
from rl_training.data.datasets.episode import Episode, faults_of, oddities_of
from rl_training.errors import DatasetError

_SHOWN = 20  # faults that are listed one by one


@dataclass
class Summary:
    """Lengths and returns of the episodes."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    infos: set[str] = field(default_factory=set)

    def add(self, episode: Episode) -> None:
        """Count an episode."""
        self.infos = self.infos & set(episode.infos) if self.returns else set(episode.infos)
        self.returns.append(episode.episode_return)
        self.lengths.append(episode.steps)
        self.terminated += bool(episode.terminations[-1])

    def as_record(self) -> dict[str, Any]:
        """Return the figures that are shown."""
        returns, lengths = np.array(self.returns), np.array(self.lengths)
        return {
            "return_mean": float(returns.mean()),
            "return_std": float(returns.std()),
            "return_min": float(returns.min()),
            "return_median": float(np.median(returns)),
            "return_max": float(returns.max()),
            "length_mean": float(lengths.mean()),
            "length_min": int(lengths.min()),
            "length_max": int(lengths.max()),
            "terminated_episodes": self.terminated,
            "infos": sorted(self.infos),
        }


@dataclass
class Findings:
    """The result of a check."""

    faults: list[str] = field(default_factory=list)
    """What makes the dataset unusable."""
    oddities: list[str] = field(default_factory=list)
    """What is unusual, but can be learned from."""


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return what the metadata says, in the order in which it is shown."""
    origin = dataset.origin
    facts = {
        "dataset": dataset.name,
        "path": str(dataset.path),
        "env_id": dataset.env_id,
        "observation_space": str(dataset.observation_space).replace("\n", ""),
        "action_space": str(dataset.action_space).replace("\n", ""),
        "episodes": dataset.total_episodes,
        "steps": dataset.total_steps,
        "size_mb": round(dataset.data_file.stat().st_size / 1e6, 1),
        "fingerprint": dataset.fingerprint,
        "algorithm": dataset.metadata.get("algorithm_name"),
        "kind": origin.get("kind"),
        "run": origin.get("run"),
        "checkpoint": origin.get("checkpoint"),
        "behaviour": origin.get("behaviour"),
        "ref_min_score": dataset.metadata.get("ref_min_score"),
        "ref_max_score": dataset.metadata.get("ref_max_score"),
    }
    return {key: value for key, value in facts.items() if value is not None}


def summarize(dataset: Dataset, *, progress: Callable[[int], None] = lambda steps: None) -> Summary:
    """Read all episodes, one at a time, and return their lengths and returns."""
    summary = Summary()
    for episode in dataset.episodes():
        summary.add(episode)
        progress(episode.steps)
    return summary


def check(dataset: Dataset, *, progress: Callable[[int], None] = lambda steps: None) -> Findings:
    """Read all episodes, one at a time, and return everything that is wrong with them."""
    findings = Findings()
    found: dict[str, list[int]] = {}  # numbers of episodes by fault
    odd: dict[str, list[int]] = {}
    steps = 0
    try:
        _check_fingerprint(dataset, findings)
        for number, episode in dataset.unchecked_episodes():
            faults = list(faults_of(episode, dataset.observation_space, dataset.action_space))
            for fault in faults:
                found.setdefault(fault, []).append(number)
            for oddity in () if faults else oddities_of(episode, dataset.observation_space, dataset.action_space):
                odd.setdefault(oddity, []).append(number)
            steps += episode.steps
            progress(episode.steps)
        if steps != dataset.total_steps:
            findings.faults.append(f"its episodes have {steps:,} steps, its metadata says {dataset.total_steps:,}")
    except DatasetError as error:  # nothing behind this place can be read
        findings.faults.append(str(error))
    findings.faults += _listed(found)
    findings.oddities += _listed(odd)
    return findings


def _check_fingerprint(dataset: Dataset, findings: Findings) -> None:
    recorded = dataset.origin.get("fingerprint")
    if recorded is not None and recorded != dataset.fingerprint:
        findings.faults.append(
            "its content is not what was written: the fingerprint in its metadata is another one, so that it was "
            "damaged or changed"
        )


def _listed(found: dict[str, list[int]]) -> list[str]:
    """Return sentences, at most so many, each with the episodes that it is about."""
    sentences = []
    for fault, numbers in list(found.items())[:_SHOWN]:
        first = ", ".join(f"{number}" for number in numbers[:5])
        more = f" and {len(numbers) - 5:,} more" if len(numbers) > 5 else ""
        sentences.append(f"episode{'s' if len(numbers) > 1 else ''} {first}{more}: {fault}")
    if len(found) > _SHOWN:
        sentences.append(f"{len(found) - _SHOWN:,} further kinds of faults")
    return sentences
