"""Reads datasets in Minari's format, one episode at a time; nothing in their files is executed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.datasets.episode import Episode, faults_of
from rl_training.data.datasets.jpeg_images import decode_images, is_jpeg_space
from rl_training.data.datasets.location import DATA_FILE, METADATA_FILE, dataset_directory
from rl_training.data.datasets.metadata import OURS, count_of, read_metadata
from rl_training.data.datasets.minari_spaces import action_space_from_text, observation_space_from_text
from rl_training.data.datasets.safe_hdf5 import (
    child,
    import_h5py,
    is_numeric,
    opened,
    read_array,
    read_bytes,
    reading,
    subgroup,
)
from rl_training.errors import DatasetError
from rl_training.experiment.storage.files import sha256_of
from rl_training.experiment.storage.untrusted import parse_json

if TYPE_CHECKING:
    from rl_training.data.observations import NumpyObservation

__all__ = ["Dataset", "Episode", "open_dataset"]

_MAX_INFOS = 1000


class Dataset:
    """A dataset on disk: what its metadata says, and its episodes, which are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        """Read the metadata of the dataset in the directory `path`."""
        self.path = path
        self.metadata: Mapping[str, Any] = read_metadata(path)
        self.name = str(self.metadata.get("dataset_id") or path.name)
        place = str(path / "data" / METADATA_FILE)
        self.observation_space: Space[Any] = observation_space_from_text(self.metadata.get("observation_space"), place)
        self.action_space: Space[Any] = action_space_from_text(self.metadata.get("action_space"), place)
        self.total_episodes: int = count_of(self.metadata, "total_episodes", place)
        self.total_steps: int = count_of(self.metadata, "total_steps", place)
        self._images_are_jpeg = bool(self.metadata.get("jpeg_encoding", True))

    @property
    def data_file(self) -> Path:
        """The file with the episodes."""
        return self.path / "data" / DATA_FILE

    @cached_property
    def env_spec(self) -> Mapping[str, Any] | None:
        """The environment's specification as plain data, None if there is none; nothing that it names is imported."""
        text = self.metadata.get("env_spec")
        if text is None:
            return None
        spec = parse_json(text, f"{self.path}: env_spec") if isinstance(text, str) else None
        if not isinstance(spec, dict) or not isinstance(spec.get("id"), str):
            raise DatasetError(f"{self.path}: the metadata's env_spec does not name an environment")
        return spec

    @property
    def env_id(self) -> str | None:
        """Id of the environment, None if the metadata names none; code is never named by a file."""
        if self.env_spec is not None:
            return self.env_spec["id"]
        named = self.origin.get("env_id")
        return named if isinstance(named, str) and ":" not in named else None

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """`env_kwargs` of the run that made the dataset, with the settings of this package's wrappers."""
        found = self.origin.get("env_kwargs")
        if isinstance(found, dict):
            return found
        found = None if self.env_spec is None else self.env_spec.get("kwargs")
        return found if isinstance(found, dict) else {}

    @property
    def origin(self) -> Mapping[str, Any]:
        """What this package recorded about the origin of the episodes; empty for datasets of other programs."""
        found = self.metadata.get(OURS)
        return found if isinstance(found, dict) else {}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the episodes and their spaces; other metadata may change."""
        digest = hashlib.sha256()
        for key in ("observation_space", "action_space"):
            digest.update(self.metadata[key].encode())
        with reading(self.data_file):
            digest.update(sha256_of(self.data_file).encode())
        return digest.hexdigest()

    def episodes(self) -> Iterator[Episode]:
        """Return every episode in order, checked; one is in memory at a time."""
        steps = 0
        for number, episode in self.unchecked_episodes():
            fault = next(faults_of(episode, self.observation_space, self.action_space), None)
            if fault is not None:
                raise DatasetError(f"{self.data_file}: episode {number} is broken: {fault}; {self._repair}")
            steps += episode.steps
            yield self._in_space_dtypes(episode)
        if steps != self.total_steps:
            raise DatasetError(
                f"{self.data_file}: its episodes have {steps:,} steps, its metadata says {self.total_steps:,}; "
                f"{self._repair}"
            )

    @property
    def _repair(self) -> str:
        return f"`axiomrl dataset check {self.name}` lists all faults"

    def unchecked_episodes(self) -> Iterator[tuple[int, Episode]]:
        """Return every episode with its number; their arrays are safe, but may be of any shape and content."""
        with opened(self.data_file) as file:
            if len(file) != self.total_episodes:
                raise DatasetError(
                    f"{self.data_file} holds {len(file):,} episodes, its metadata says {self.total_episodes:,}"
                )
            for number in range(self.total_episodes):
                yield number, self._read(subgroup(file, f"episode_{number}"))

    def _read(self, group: Any) -> Episode:
        flags = (child(group, name) for name in ("terminations", "truncations"))
        terminations, truncations = (read_flags(array) for array in flags)
        rewards = read_array(child(group, "rewards"))
        return Episode(
            observations=self._read_observations(group),
            actions=self._read_part(group, "actions", self.action_space),
            rewards=rewards if rewards.dtype in (np.float32, np.float64) else rewards.astype(np.float64),
            terminations=terminations,
            truncations=truncations,
            infos=_read_infos(subgroup(group, "infos"), {}) if "infos" in group else {},
            seed=_seed(group),
        )

    def _read_observations(self, group: Any) -> NumpyObservation:
        if isinstance(self.observation_space, spaces.Dict):
            parts = subgroup(group, "observations")
            return {key: self._read_part(parts, key, part) for key, part in self.observation_space.items()}
        return self._read_part(group, "observations", self.observation_space)

    def _read_part(self, group: Any, name: str, space: Space[Any]) -> np.ndarray:
        array = child(group, name)
        # Minari's first versions stored images as they are, and did not say so.
        if self._images_are_jpeg and is_jpeg_space(space) and getattr(array, "ndim", 0) <= 2:
            return decode_images(read_bytes(array), space, f"{self.data_file}: {array.name}")
        return read_array(array)

    def _in_space_dtypes(self, episode: Episode) -> Episode:
        """Return an episode without faults whose arrays have exactly the types of their spaces."""
        observations, space = episode.observations, self.observation_space
        if isinstance(observations, dict) and isinstance(space, spaces.Dict):
            converted: Any = {key: _as(observations[key], part) for key, part in space.items()}
        else:
            converted = _as(observations, space)
        return Episode(
            converted,
            _as(episode.actions, self.action_space),
            episode.rewards,
            episode.terminations,
            episode.truncations,
            episode.infos,
            episode.seed,
        )


def open_dataset(name: str | Path) -> Dataset:
    """Return the dataset with an id below MINARI_DATASETS_PATH, or at a path."""
    dataset = Dataset(dataset_directory(name))
    if not dataset.total_episodes:
        raise DatasetError(f"the dataset {dataset.name} in {dataset.path} has no episodes")
    import_h5py()
    if not dataset.data_file.is_file():
        raise DatasetError(f"{dataset.path} lacks its episodes: there is no file {dataset.data_file.name}")
    return dataset


def read_flags(array: Any) -> np.ndarray:
    """Return flags as booleans; numbers other than 0 and 1 are refused."""
    flags = read_array(array)
    if flags.dtype != np.bool_ and not np.isin(flags, (0, 1)).all():
        raise DatasetError(f"{array.file.filename}: {array.name} holds numbers other than 0 and 1")
    return flags.astype(np.bool_, copy=False)


def _read_infos(group: Any, found: dict[str, np.ndarray], prefix: str = "") -> dict[str, np.ndarray]:
    """Return the numeric arrays of `infos`, nested ones as `outer/inner`; texts are left out."""
    h5py = import_h5py()
    for key in group:
        entry = child(group, key)
        if isinstance(entry, h5py.Group):
            if prefix.count("/") > 4:
                raise DatasetError(f"{entry.file.filename}: {entry.name} is nested too deeply")
            _read_infos(entry, found, f"{prefix}{key}/")
        elif isinstance(entry, h5py.Dataset) and is_numeric(entry) and entry.ndim:
            found[f"{prefix}{key}"] = read_array(entry)
        if len(found) > _MAX_INFOS:
            raise DatasetError(f"{group.file.filename}: {group.name} has more than {_MAX_INFOS} entries")
    return found


def _seed(group: Any) -> int | None:
    if "seed" not in group.attrs:
        return None
    seed = group.attrs["seed"]
    if isinstance(seed, np.ndarray) and seed.shape == ():
        seed = seed[()]
    if not isinstance(seed, int | np.integer):
        raise DatasetError(f"{group.file.filename}: the seed of {group.name} is no integer")
    return int(seed)


def _as(array: Any, space: Space[Any]) -> np.ndarray:
    return array.astype(space.dtype, copy=False)
