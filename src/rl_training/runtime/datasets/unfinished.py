"""A recording in progress on disk: rounds that are complete, and the request that they belong to."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rl_training.data.datasets.location import datasets_root
from rl_training.data.datasets.safe_hdf5 import opened
from rl_training.data.datasets.writer import Description, EpisodeFile, new_dataset
from rl_training.errors import DatasetError
from rl_training.experiment.storage.files import (
    hold_lock,
    sha256_of,
    storage_errors,
    sync_directory,
    write_json_atomically,
)
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_json

_DIRECTORY = ".recording"
_REQUEST = "request.json"
_ROUNDS = "rounds.json"


def unfinished_path(name: str) -> Path:
    """Return the directory of an unfinished recording; neither this package nor Minari lists it as a dataset."""
    return datasets_root() / _DIRECTORY / name


def unfinished_request(name: str) -> dict[str, Any] | None:
    """Return what an unfinished recording was asked for; None if there is none."""
    try:
        request = read_json(unfinished_path(name) / _REQUEST)
    except (FileNotFoundError, UntrustedFileError):
        return None
    return request if isinstance(request, dict) else None


class UnfinishedRecording:
    """The rounds of a recording; each is written completely or not at all."""

    def __init__(self, name: str, request: Mapping[str, Any]) -> None:
        """Begin a recording, or continue that of the same request."""
        self.name = name
        self.path = unfinished_path(name)
        self._lock: IO[bytes] | None = None
        with storage_errors("a recording", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = hold_lock(self.path / "lock", taken=f"another process is recording {name}; wait for it")
        try:
            self._check_request(request)
            self.rounds = self._sound_rounds()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> UnfinishedRecording:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes continue the recording."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def episodes(self) -> int:
        """Episodes in complete rounds."""
        return sum(entry["episodes"] for entry in self.rounds)

    @property
    def steps(self) -> int:
        """Steps in complete rounds."""
        return sum(entry["steps"] for entry in self.rounds)

    def _check_request(self, request: Mapping[str, Any]) -> None:
        found = unfinished_request(self.name)
        if found is None:
            with storage_errors("a recording", self.path):
                write_json_atomically(self.path / _REQUEST, dict(request))
            return
        different = sorted(key for key in {*found, *request} if found.get(key) != request.get(key))
        if different:
            raise DatasetError(
                f"an unfinished recording of {self.name} differs in {', '.join(different)}; finish it with the command "
                f"that began it, choose another --name, or delete {self.path}"
            )

    def _sound_rounds(self) -> list[dict[str, Any]]:
        """Return the entries of the complete rounds up to the first that is damaged."""
        try:
            entries = read_json(self.path / _ROUNDS)
        except (FileNotFoundError, UntrustedFileError):
            return []
        sound: list[dict[str, Any]] = []
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            file = self._file(number)
            with contextlib.suppress(OSError, KeyError, TypeError):
                if sha256_of(file) == entry["sha256"]:
                    sound.append({key: entry[key] for key in ("episodes", "steps", "sha256")})
                    continue
            break
        return sound

    @contextlib.contextmanager
    def next_round(self) -> Iterator[EpisodeFile]:
        """Open a file for the episodes of the next round, which counts when the block ends without an error."""
        target = self._file(len(self.rounds))
        temporary = target.with_suffix(".writing")
        with storage_errors("a recording", self.path):
            temporary.unlink(missing_ok=True)
        with EpisodeFile(temporary) as file:
            yield file
        with storage_errors("a recording", self.path):
            os.replace(temporary, target)
            entry = {"episodes": file.episodes, "steps": file.steps, "sha256": sha256_of(target)}
            self.rounds.append(entry)
            write_json_atomically(self.path / _ROUNDS, self.rounds)
            sync_directory(self.path)

    def publish(self, description: Description, *, episodes: int | None, steps: int | None) -> None:
        """Make the dataset of the first episodes: as many as asked for, or until they have the steps asked for."""
        with storage_errors("a recording", self.path):
            making = self.path / "making"
            shutil.rmtree(making, ignore_errors=True)  # of a process that was killed
            making.mkdir()
        with new_dataset(description, directory=making) as file:
            for number, entry in enumerate(self.rounds):
                with opened(self._file(number)) as played:
                    for own in range(entry["episodes"]):
                        if file.episodes == episodes or (steps is not None and file.steps >= steps):
                            break
                        file.copy_from(played, own)
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # other recordings are in progress
            for parent in list(self.path.parents)[: len(Path(self.name).parts)]:
                parent.rmdir()

    def _file(self, number: int) -> Path:
        return self.path / f"round_{number:05}.hdf5"
