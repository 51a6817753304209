"""All transitions of a dataset as columns: in memory, or in memory-mapped files if the dataset is large."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rl_training.data.datasets.dataset import Dataset
from rl_training.data.datasets.episode import ACTION_MASK, LOG_PROB, Episode
from rl_training.errors import DatasetError
from rl_training.experiment.machine import available_memory, in_words
from rl_training.experiment.storage.files import storage_errors, sync_directory, sync_file, write_json_atomically
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_json

if TYPE_CHECKING:
    from rl_training.data.observations import NumpyObservation

logger = logging.getLogger("rl_training")

IN_MEMORY = 0.25
"""Part of the free memory that columns may take; larger ones become memory-mapped files."""
_FORMAT = 1
_MANIFEST = "columns.json"
_OBSERVATION, _INFO, _OBSERVATION_INFO = "observation", "info", "observation_info"
_EPISODE_BYTES = 24  # of the columns of episodes


@dataclass(frozen=True)
class DatasetColumns:
    """All N transitions of E episodes; the observations of an episode lie in a row, its final one included."""

    observation: NumpyObservation  # [N + E, ...]
    place: np.ndarray  # [N] int64: the row of a transition's observation; its successor is the next row
    action: np.ndarray  # [N, ...]
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    episode: np.ndarray  # [N] int32: the number of a transition's episode
    episode_returns: np.ndarray  # [E] float64
    first: np.ndarray  # [E] int64: the row of an episode's first observation
    infos: dict[str, np.ndarray] = field(default_factory=dict)  # [N, ...] each: what every episode has
    observation_infos: dict[str, np.ndarray] = field(default_factory=dict)
    """[N + E, ...] each: infos that belong to observations, such as action masks, by row of `observation`."""

    def __len__(self) -> int:
        return len(self.reward)


def load_columns(
    dataset: Dataset, *, cache: Path | None = None, infos: Collection[str] = (LOG_PROB, ACTION_MASK)
) -> DatasetColumns:
    """Return all transitions of a dataset, with those of the named `infos` that every episode has.

    Columns that take more than a quarter of the free memory are kept in files below `cache` (default: the user's cache
    directory), which are made once for each content and read as far as they are needed.
    """
    sizes = _Sizes.of(dataset, infos)
    free = available_memory()
    if sizes.nbytes <= free * IN_MEMORY:
        return _grouped(_fill(dataset, {name: np.zeros(shape, dtype) for name, (shape, dtype) in sizes.forms.items()}))
    return _cached(dataset, sizes, cache or default_cache(), free)


def default_cache() -> Path:
    """Return the directory for the columns of large datasets."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "axiomrl" / "datasets"


@dataclass(frozen=True)
class _Sizes:
    """Shape and type of every column."""

    forms: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

    @classmethod
    def of(cls, dataset: Dataset, infos: Collection[str]) -> _Sizes:
        """Return the forms of a dataset's columns; those of infos are taken from its first episode."""
        steps, episodes = dataset.total_steps, dataset.total_episodes
        space, action = dataset.observation_space, dataset.action_space
        parts = {f"/{key}": part for key, part in space.items()} if isinstance(space, spaces.Dict) else {"": space}
        forms: dict[str, tuple[tuple[int, ...], Any]] = {
            f"{_OBSERVATION}{key}": ((steps + episodes, *(part.shape or ())), part.dtype) for key, part in parts.items()
        }
        forms |= {
            "place": ((steps,), np.int64),
            "action": ((steps, *(action.shape or ())), action.dtype),
            "reward": ((steps,), np.float32),
            "terminated": ((steps,), np.bool_),
            "truncated": ((steps,), np.bool_),
            "episode": ((steps,), np.int32),
            "episode_returns": ((episodes,), np.float64),
            "first": ((episodes,), np.int64),
        }
        first = next(dataset.episodes())
        for name, array in first.infos.items():
            if name in infos and len(array) == first.steps:
                forms[f"{_INFO}/{name}"] = ((steps, *array.shape[1:]), array.dtype)
            elif name in infos and len(array) == first.steps + 1:
                forms[f"{_OBSERVATION_INFO}/{name}"] = ((steps + episodes, *array.shape[1:]), array.dtype)
        return cls({name: (shape, np.dtype(dtype)) for name, (shape, dtype) in forms.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(int(np.prod(shape, dtype=float)) * dtype.itemsize for shape, dtype in self.forms.values())

    def as_json(self) -> dict[str, Any]:
        """Return the forms as plain data."""
        return {name: [list(shape), dtype.str] for name, (shape, dtype) in self.forms.items()}


def _fill(dataset: Dataset, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copy all episodes into the columns and return these; infos that an episode lacks are removed."""
    step = row = 0
    for number, episode in enumerate(dataset.episodes()):
        steps = slice(step, step + episode.steps)
        rows = slice(row, row + episode.steps + 1)
        if steps.stop > dataset.total_steps:
            raise DatasetError(f"{dataset.data_file} holds more steps than its metadata says, {dataset.total_steps:,}")
        if isinstance(episode.observations, dict):
            for key, part in episode.observations.items():
                columns[f"{_OBSERVATION}/{key}"][rows] = part
        else:
            columns[_OBSERVATION][rows] = episode.observations
        columns["place"][steps] = np.arange(row, row + episode.steps)
        columns["action"][steps] = episode.actions
        columns["reward"][steps] = episode.rewards
        columns["terminated"][steps] = episode.terminations
        columns["truncated"][steps] = episode.truncations
        columns["episode"][steps] = number
        columns["episode_returns"][number] = episode.episode_return
        columns["first"][number] = row
        _fill_infos(columns, episode, steps, rows)
        step, row = steps.stop, rows.stop
    return columns


def _fill_infos(columns: dict[str, np.ndarray], episode: Episode, steps: slice, rows: slice) -> None:
    for name in [name for name in columns if name.startswith((f"{_INFO}/", f"{_OBSERVATION_INFO}/"))]:
        kind, _, key = name.partition("/")
        target = columns[name][steps if kind == _INFO else rows]
        found = episode.infos.get(key)
        if found is None or found.shape != target.shape or found.dtype != target.dtype:
            del columns[name]  # only what every episode has is a column
        else:
            target[:] = found


def _grouped(columns: Mapping[str, np.ndarray]) -> DatasetColumns:
    """Return columns by their role."""

    def below(prefix: str) -> dict[str, np.ndarray]:
        return {name.partition("/")[2]: column for name, column in columns.items() if name.startswith(f"{prefix}/")}

    by_row = below(_OBSERVATION_INFO)
    return DatasetColumns(
        observation=columns[_OBSERVATION] if _OBSERVATION in columns else below(_OBSERVATION),
        infos=below(_INFO) | {name: column[columns["place"]] for name, column in by_row.items()},
        observation_infos=by_row,
        **{
            name: columns[name]
            for name in (
                "place", "action", "reward", "terminated", "truncated", "episode", "episode_returns", "first",
            )
        },
    )  # fmt: skip


def _cached(dataset: Dataset, sizes: _Sizes, cache: Path, free: int) -> DatasetColumns:
    """Return the columns in memory-mapped files, which are made if they are not there."""
    directory = cache / dataset.fingerprint
    wanted = sizes.as_json()
    if not _is_complete(directory, wanted):
        logger.info(
            "the dataset %s takes about %s as arrays, and %s of memory are free: it is prepared once in %s and read "
            "from there",
            dataset.name, in_words(sizes.nbytes), in_words(free), directory,
        )  # fmt: skip
        _make_cache(dataset, sizes, directory)
    present = set(read_json(directory / _MANIFEST)["present"])
    files = {name: _file_name(directory, number) for number, name in enumerate(sizes.forms) if name in present}
    return _grouped({name: np.load(path, mmap_mode="r", allow_pickle=False) for name, path in files.items()})


def _make_cache(dataset: Dataset, sizes: _Sizes, directory: Path) -> None:
    with storage_errors("a dataset's columns", directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(directory.parent).free
        if sizes.nbytes > free:
            raise DatasetError(
                f"the dataset {dataset.name} needs about {in_words(sizes.nbytes)} in {directory.parent}, and "
                f"{in_words(free)} are free there; free some space or set XDG_CACHE_HOME"
            )
        with _temporary_directory(directory.parent) as temporary:
            numbers = {name: number for number, name in enumerate(sizes.forms)}
            files = {
                name: np.lib.format.open_memmap(
                    _file_name(temporary, numbers[name]), mode="w+", dtype=dtype, shape=shape
                )
                for name, (shape, dtype) in sizes.forms.items()
            }
            present = list(_fill(dataset, dict(files)))
            for name in present:
                files[name].flush()
                sync_file(_file_name(temporary, numbers[name]))
            manifest = {"format": _FORMAT, "columns": sizes.as_json(), "present": present}
            write_json_atomically(temporary / _MANIFEST, manifest)
            shutil.rmtree(directory, ignore_errors=True)  # of another version of this package, or incomplete
            _move(temporary, directory)
            sync_directory(directory.parent)


def _move(temporary: Path, directory: Path) -> None:
    try:
        os.rename(temporary, directory)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another process was faster
            raise


@contextlib.contextmanager
def _temporary_directory(parent: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".making-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _is_complete(directory: Path, wanted: Mapping[str, Any]) -> bool:
    try:
        manifest = read_json(directory / _MANIFEST)
        return (
            manifest["format"] == _FORMAT
            and manifest["columns"] == wanted
            and all(name in wanted for name in manifest["present"])
        )
    except (FileNotFoundError, UntrustedFileError, KeyError, TypeError):
        return False


def _file_name(directory: Path, number: int) -> Path:
    # Numbered, because the keys of a Dict may be no file names.
    return directory / f"{number:03}.npy"
