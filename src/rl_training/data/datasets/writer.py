"""Writes datasets that Minari opens: whole or not at all, and without loss."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.data.datasets.dataset import Dataset
from rl_training.data.datasets.episode import Episode
from rl_training.data.datasets.location import DATA_FILE, METADATA_FILE, check_id, datasets_root
from rl_training.data.datasets.metadata import OURS
from rl_training.data.datasets.minari_spaces import space_to_text
from rl_training.data.datasets.safe_hdf5 import import_h5py
from rl_training.errors import AxiomError, DatasetError
from rl_training.experiment.storage.files import (
    hold_lock,
    storage_errors,
    sync_directory,
    sync_file,
    write_json_atomically,
)

MINARI_VERSION = "0.5.4"
"""The first version of Minari that reads images without loss."""
_MAKING = ".making-"  # prefix of temporary directories
_CHUNK = 1 << 20  # bytes
# Readable since HDF5 1.10 of 2016; the earlier format takes several kilobytes for every array and checks no header.
_LIBRARY = ("v110", "v110")


class EpisodeFile:
    """A new HDF5 file of episodes, laid out as Minari does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.episodes = 0
        self.steps = 0
        with storage_errors("a dataset", path.parent):
            self._file = import_h5py().File(path, "x", libver=_LIBRARY, track_order=True)

    def __enter__(self) -> EpisodeFile:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Exception) if error[0] is not None else storage_errors("a dataset", self.path.parent):
            self.close()

    def close(self) -> None:
        """Write everything to disk."""
        if self._file:
            self._file.close()
            sync_file(self.path)

    def add(self, episode: Episode, *, number: int | None = None) -> None:
        """Add an episode, as the next one or under a number of its own."""
        number = self.episodes if number is None else number
        with storage_errors("a dataset", self.path.parent):
            group = self._file.create_group(f"episode_{number}")
            group.attrs["id"] = number
            group.attrs["total_steps"] = episode.steps
            if episode.seed is not None:
                group.attrs["seed"] = episode.seed
            _write(group, "observations", episode.observations)
            _write(group, "actions", episode.actions)
            _write(group, "rewards", episode.rewards)
            _write(group, "terminations", episode.terminations)
            _write(group, "truncations", episode.truncations)
            for name, info in episode.infos.items():
                _write(group.require_group("infos"), name, info)
        self.episodes += 1
        self.steps += episode.steps

    def copy_from(self, other: Any, number: int) -> int:
        """Append the episode `number` of another open file of this package unchanged and return its steps."""
        with storage_errors("a dataset", self.path.parent):
            source = other[f"episode_{number}"]
            other.copy(source, self._file, name=f"episode_{self.episodes}")
            self._file[f"episode_{self.episodes}"].attrs["id"] = self.episodes
            steps = int(source.attrs["total_steps"])
        self.episodes += 1
        self.steps += steps
        return steps


def _write(group: Any, name: str, content: Any) -> None:
    if isinstance(content, dict):
        below = group.create_group(name)
        for key, part in content.items():
            _write(below, key, part)
        return
    array = np.ascontiguousarray(content)
    if not array.size:
        group.create_dataset(name, data=array)
        return
    rows = max(1, min(len(array), _CHUNK * len(array) // array.nbytes))
    is_image = array.dtype == np.uint8 and array.ndim > 2
    group.create_dataset(
        name,
        data=array,
        chunks=(rows, *array.shape[1:]),
        fletcher32=True,  # a checksum, so that damage is found when it is read
        **({"compression": "gzip", "compression_opts": 1} if is_image else {}),
    )


@dataclass(frozen=True)
class Description:
    """What a dataset's metadata says about its episodes."""

    name: str
    observation_space: Space[Any]
    action_space: Space[Any]
    origin: Mapping[str, Any]
    """Where the episodes come from, as plain data."""
    env_spec: str | None = None
    """The environment as Gymnasium writes it in JSON."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of Minari's metadata, such as `algorithm_name`."""

    def metadata(self, file: EpisodeFile) -> dict[str, Any]:
        """Return the content of `metadata.json`."""
        return {
            "dataset_id": self.name,
            "total_episodes": file.episodes,
            "total_steps": file.steps,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": space_to_text(self.observation_space),
            "action_space": space_to_text(self.action_space),
            **({} if self.env_spec is None else {"env_spec": self.env_spec}),
            "minari_version": MINARI_VERSION,
            "dataset_size": round(file.path.stat().st_size / 1e6, 1),
            **self.extra,
        }


def check_new(name: str) -> Path:
    """Return where a new dataset goes; raise an error if its id is malformed or taken."""
    target = datasets_root() / check_id(name)
    if target.exists():
        raise DatasetError(f"the dataset {name} exists in {target}; choose another --name, or delete it")
    return target


@contextlib.contextmanager
def new_dataset(description: Description, *, directory: Path | None = None) -> Iterator[EpisodeFile]:
    """Open a file for the episodes of a new dataset, which gets its name when the block ends without an error.

    The files are made in `directory`, which must be empty and on the same disk, or in a temporary one.
    """
    target = check_new(description.name)
    with temporary_directory() if directory is None else contextlib.nullcontext(directory) as temporary:
        with storage_errors("a dataset", temporary):
            made = temporary / "made"
            (made / "data").mkdir(parents=True)
        with EpisodeFile(made / "data" / DATA_FILE) as file:
            yield file
        if not file.episodes:
            raise DatasetError(f"the dataset {description.name} would have no episodes")
        with storage_errors("a dataset", temporary):
            _finish(made, description, file)
            _publish(made, target)


def _finish(directory: Path, description: Description, file: EpisodeFile) -> None:
    """Write the metadata, with the fingerprint of what was written."""
    place = directory / "data" / METADATA_FILE
    metadata = description.metadata(file)
    write_json_atomically(place, metadata)
    metadata[OURS] = {**description.origin, "fingerprint": Dataset(directory).fingerprint}
    write_json_atomically(place, metadata)
    sync_directory(directory)


def _publish(directory: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(directory, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise DatasetError(f"the dataset {target} was made by somebody else in the meantime") from error
        raise
    sync_directory(target.parent)


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """Give a directory on the disk of the datasets, and remove it afterwards; those of killed processes go first."""
    root = datasets_root()
    with storage_errors("a dataset", root):
        root.mkdir(parents=True, exist_ok=True)
        for other in root.glob(f"{_MAKING}*"):
            with contextlib.suppress(AxiomError), _held(other):
                shutil.rmtree(other, ignore_errors=True)
        directory = Path(tempfile.mkdtemp(prefix=_MAKING, dir=root))
    try:
        with _held(directory):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Hold the lock of a temporary directory; its process is alive if that fails."""
    lock = hold_lock(directory / "lock", taken=f"{directory} is in use")
    try:
        yield
    finally:
        if lock is not None:
            lock.close()
