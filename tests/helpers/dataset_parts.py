"""Datasets for tests: made by Minari's own functions, or by hand."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.datasets.episode import Episode
from rl_training.data.datasets.writer import Description, new_dataset

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)
PARTS = spaces.Dict({"image": IMAGE, "position": VECTOR, "room": spaces.Discrete(5)})


def random_episode(
    generator: np.random.Generator,
    observation_space: Space[Any],
    action_space: Space[Any],
    steps: int,
    *,
    seed: int | None = None,
    terminated: bool = True,
    infos: Sequence[str] = (),
) -> Episode:
    """Return an episode of random content."""
    if isinstance(observation_space, spaces.Dict):
        parts = {key: _rows(generator, part, steps + 1) for key, part in observation_space.items()}
        observations: Any = parts
    else:
        observations = _rows(generator, observation_space, steps + 1)
    ends = np.arange(1, steps + 1) == steps
    known = {
        "log_prob": generator.normal(size=steps).astype(np.float32),
        "action_mask": generator.random((steps + 1, 4)) < 0.5,
    }
    return Episode(
        observations,
        _rows(generator, action_space, steps),
        generator.normal(size=steps),
        ends & terminated,
        ends & (not terminated),
        {name: known[name] for name in infos},
        seed,
    )


def _rows(generator: np.random.Generator, space: Space[Any], rows: int) -> np.ndarray:
    shape = (rows, *(space.shape or ()))
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.start, space.start + space.n, shape)
    if isinstance(space, spaces.MultiDiscrete):
        return generator.integers(space.start, space.start + space.nvec, shape).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return generator.integers(0, 2, shape).astype(space.dtype)
    if space.dtype == np.uint8:
        return generator.integers(0, 256, shape, dtype=np.uint8)
    return np.clip(generator.normal(size=shape), space.low, space.high).astype(space.dtype)  # type: ignore[attr-defined]


def write_with_minari(
    name: str,
    episodes: Sequence[Episode],
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    jpeg_encoding: bool = False,
    env: str | None = None,
) -> None:
    """Write a dataset with Minari's own functions below MINARI_DATASETS_PATH."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            id=number,
            seed=episode.seed,
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=episode.terminations,
            truncations=episode.truncations,
            infos=episode.infos,
        )
        for number, episode in enumerate(episodes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            name,
            buffer=buffers,
            env=env,
            observation_space=observation_space,
            action_space=action_space,
            jpeg_encoding=jpeg_encoding,
        )


def write_dataset(
    name: str,
    episodes: Sequence[Episode],
    observation_space: Space[Any],
    action_space: Space[Any],
    **options: Any,
) -> None:
    """Write a dataset with this package."""
    description = Description(name, observation_space, action_space, {"kind": "test"}, **options)
    with new_dataset(description) as file:
        for episode in episodes:
            file.add(episode)


def assert_same_episode(one: Episode, other: Episode) -> None:
    """Assert that two episodes are equal in every array."""
    if isinstance(one.observations, dict) and isinstance(other.observations, dict):
        assert one.observations.keys() == other.observations.keys()
        for key, part in one.observations.items():
            np.testing.assert_array_equal(part, other.observations[key], err_msg=key)
    else:
        np.testing.assert_array_equal(one.observations, other.observations)
    for name in ("actions", "rewards", "terminations", "truncations"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.infos.keys() == other.infos.keys()
    for key, info in one.infos.items():
        np.testing.assert_array_equal(info, other.infos[key], err_msg=key)
    assert one.seed == other.seed


def main(arguments: list[str]) -> int:
    """Run `axiomrl` with short rounds of recordings, in a process that a test kills."""
    from rl_training import cli
    from rl_training.runtime.datasets import recording

    recording.ROUND_STEPS = 60
    return cli.main(arguments)
