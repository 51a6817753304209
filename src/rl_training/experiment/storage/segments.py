"""Append-only data of a run: a checkpoint lists the segments it needs instead of copying them.

`segments/<name>_<n>.safetensors` never changes after it is written, so that the cost of a checkpoint depends on the
data added since the last one.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import CheckpointError, StorageError
from rl_training.experiment.storage.files import (
    GONE,
    is_own_directory,
    make_directory,
    safetensors_errors,
    sha256_of,
    storage_errors,
    sync_directory,
    sync_file,
)

SEGMENTS = "segments"
_NAME = re.compile(r"replay\d*_\d+_\d+\.safetensors")
_TEMPORARY = re.compile(r"\.replay\d*_\d+_\d+\.writing")


def write_segment(run_dir: Path, name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Write a segment durably and return its entry for a manifest."""
    from safetensors.numpy import save_file

    directory = run_dir / SEGMENTS
    target, temporary = directory / f"{name}.safetensors", directory / f".{name}.writing"
    with storage_errors("a segment of the replay", directory):
        make_directory(directory)
        try:
            temporary.unlink(missing_ok=True)  # if it were a link, writing would follow it
            temporary.touch()
            mode = temporary.stat().st_mode  # the library makes its file private; use the umask instead
            with safetensors_errors():
                save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, temporary)
            temporary.chmod(mode)
            sync_file(temporary)
            entry = {"name": target.name, "size": temporary.stat().st_size, "sha256": sha256_of(temporary)}
            os.replace(temporary, target)
            sync_directory(directory)
        finally:
            temporary.unlink(missing_ok=True)
    return entry


def read_segment(run_dir: Path, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of a segment."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = run_dir / SEGMENTS / str(entry["name"])
    try:
        arrays: dict[str, np.ndarray] = load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"segment {path} cannot be read: {error!s:.300}") from error
    for name, array in arrays.items():
        first, last = entry["transitions" if name.startswith("transition/") else "observations"]
        if array.shape[:1] != (last - first,):
            raise CheckpointError(f"segment {path} holds {array.shape[:1]} rows of {name}, its entry {last - first}")
    return arrays


def check_segment(run_dir: Path, entry: Mapping[str, Any]) -> None:
    """Raise an error if a segment is missing or damaged."""
    name = str(entry["name"])
    path = run_dir / SEGMENTS / name
    if Path(name).name != name or name in ("", ".."):
        raise CheckpointError(f"unsafe: the manifest lists the segment {name!r} outside of {SEGMENTS}")
    if not path.is_file():
        raise CheckpointError(f"segment {name} is missing")
    if path.stat().st_size != entry["size"] or sha256_of(path) != entry["sha256"]:
        raise CheckpointError(f"segment {name} is damaged: its size or content does not match its entry")


def check_segments_still_there(run_dir: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Raise an error if segments of this run have disappeared: a checkpoint that lists them could not be resumed."""
    for entry in entries:
        path = run_dir / SEGMENTS / str(entry["name"])
        if not path.is_file() or path.stat().st_size != entry["size"]:
            raise StorageError(f"cannot write a checkpoint in {run_dir}: the segment {path.name} is missing; {GONE}")


def remove_unused(run_dir: Path, used: Iterable[str]) -> None:
    """Delete the segments that no checkpoint lists; only files with the name of a segment are deleted."""
    directory = run_dir / SEGMENTS
    keep = set(used)
    if not is_own_directory(directory):
        return
    for path in directory.iterdir():
        named = _NAME.fullmatch(path.name) or _TEMPORARY.fullmatch(path.name)
        if named and path.name not in keep and not path.is_dir():
            with contextlib.suppress(OSError):  # a remaining file does no harm
                path.unlink()
