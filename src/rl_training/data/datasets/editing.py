"""Makes datasets of datasets: joins several, or divides one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_training.data.datasets.dataset import Dataset
from rl_training.data.datasets.location import check_id
from rl_training.data.datasets.writer import Description, check_new, new_dataset
from rl_training.errors import DatasetError

Progress = Callable[[int], None]
"""Gets the number of steps that were read since the last call."""
_KEPT = (
    "algorithm_name",
    "author",
    "author_email",
    "code_permalink",
    "description",
    "requirements",
    "eval_env_spec",
    "ref_min_score",
    "ref_max_score",
    "num_episodes_average_score",
)
"""Entries of Minari's metadata that stay true for a part of the episodes, and for a union if all sources agree."""


def merge(sources: Sequence[Dataset], name: str, *, progress: Progress = lambda steps: None) -> None:
    """Write the episodes of several datasets, in their order, to a new one."""
    check_new(name)
    first = sources[0]
    for other in sources[1:]:
        _check_same(first, other)
    description = Description(
        name,
        first.observation_space,
        first.action_space,
        {"kind": "merge", "sources": [_source(one) for one in sources]},
        _common(sources, "env_spec"),
        {
            **{key: value for key in _KEPT if (value := _common(sources, key)) is not None},
            "combined_datasets": [one.name for one in sources],
        },
    )
    with new_dataset(description) as file:
        for source in sources:
            for episode in source.episodes():
                file.add(episode)
                progress(episode.steps)


def split(
    source: Dataset,
    names: Sequence[str],
    *,
    fraction: float | None = None,
    episodes: int | None = None,
    seed: int = 0,
    progress: Progress = lambda steps: None,
) -> tuple[int, int]:
    """Divide a dataset into two by chance and return the numbers of episodes in each.

    The first gets the fraction or the number of episodes; both keep the order of the episodes.
    """
    for name in names:
        check_new(name)
    chosen = _choose(source, fraction, episodes, seed)
    kept = {key: source.metadata[key] for key in _KEPT if key in source.metadata}
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(
                new_dataset(
                    Description(
                        name,
                        source.observation_space,
                        source.action_space,
                        {"kind": "split", "sources": [_source(source)], "part": part, "seed": seed},
                        source.metadata.get("env_spec"),
                        kept,
                    )
                )
            )
            for part, name in enumerate(names)
        ]
        for number, episode in enumerate(source.episodes()):
            files[0 if number in chosen else 1].add(episode)
            progress(episode.steps)
    return files[0].episodes, files[1].episodes


def split_names(name: str) -> tuple[str, str]:
    """Return the default names of a dataset's two parts: `x-v0` becomes `x-train-v0` and `x-test-v0`."""
    stem, _, version = check_id(name).rpartition("-v")
    return f"{stem}-train-v{version}", f"{stem}-test-v{version}"


def _choose(source: Dataset, fraction: float | None, episodes: int | None, seed: int) -> set[int]:
    total = source.total_episodes
    if total < 2:
        raise DatasetError(f"the dataset {source.name} has one episode, which cannot be divided")
    count = episodes if episodes is not None else min(max(round((fraction or 0.0) * total), 1), total - 1)
    if not 1 <= count < total:
        raise DatasetError(
            f"the dataset {source.name} has {total:,} episodes; a part can have 1 to {total - 1:,}, not {count:,}"
        )
    order = np.random.default_rng(seed).permutation(total)
    return set(order[:count].tolist())


def _check_same(one: Dataset, other: Dataset) -> None:
    for kind in ("observation", "action"):
        ours, theirs = (getattr(dataset, f"{kind}_space") for dataset in (one, other))
        if ours != theirs:
            raise DatasetError(
                f"{one.name} and {other.name} cannot be merged: their {kind} spaces are {ours!s:.120} and "
                f"{theirs!s:.120}"
            )
    if one.env_id != other.env_id and None not in (one.env_id, other.env_id):
        raise DatasetError(
            f"{one.name} and {other.name} cannot be merged: one is of {one.env_id}, the other of {other.env_id}"
        )


def _source(dataset: Dataset) -> dict[str, Any]:
    return {**dataset.origin, "dataset": dataset.name, "fingerprint": dataset.fingerprint}


def _common(sources: Sequence[Dataset], key: str) -> Any:
    """Return an entry of the metadata that all sources have alike, else None."""
    values = [source.metadata.get(key) for source in sources]
    return values[0] if all(value == values[0] for value in values) else None
