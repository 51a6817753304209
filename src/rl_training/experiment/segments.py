"""Append-only data of a run, written once: a checkpoint lists the segments it needs instead of copying them.

`segments/<name>_<n>.safetensors` never changes after it is written. What a checkpoint costs therefore follows what is
new since the last one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import CheckpointError
from rl_training.experiment.files import safetensors_errors, sha256_of, storage_errors, sync_directory, sync_file

SEGMENTS = "segments"


def write_segment(run_dir: Path, name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Write a segment durably and return its entry for a manifest."""
    from safetensors.numpy import save_file

    directory = run_dir / SEGMENTS
    target, temporary = directory / f"{name}.safetensors", directory / f".{name}.writing"
    with storage_errors("a segment of the replay", directory):
        directory.mkdir(exist_ok=True)
        try:
            temporary.touch()
            mode = temporary.stat().st_mode  # the library makes its file private; the umask decides instead
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
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"segment {path} cannot be read: {error}") from error


def check_segment(run_dir: Path, entry: Mapping[str, Any]) -> None:
    """Raise where a segment is missing or damaged."""
    name = str(entry["name"])
    path = run_dir / SEGMENTS / name
    if Path(name).name != name or name in ("", ".."):
        raise CheckpointError(f"unsafe: the manifest lists the segment {name!r} outside of {SEGMENTS}")
    if not path.is_file():
        raise CheckpointError(f"segment {name} is missing")
    if path.stat().st_size != entry["size"] or sha256_of(path) != entry["sha256"]:
        raise CheckpointError(f"segment {name} is damaged: its size or content does not match its entry")


def remove_unused(run_dir: Path, used: Iterable[str]) -> None:
    """Delete the segments that no checkpoint lists any more."""
    directory = run_dir / SEGMENTS
    keep = set(used)
    if directory.is_dir():
        for path in directory.iterdir():
            if path.name not in keep:
                path.unlink(missing_ok=True)
