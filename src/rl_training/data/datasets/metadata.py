"""The file `metadata.json` of a dataset; needs no Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.data.datasets.location import METADATA_FILE
from rl_training.errors import DatasetError
from rl_training.experiment.storage.untrusted import parse_json, read_json

OURS = "axiomrl"
"""Key of what this package adds to Minari's metadata: where the episodes come from."""
_MAX_METADATA = 64 << 20


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of the dataset in a directory; only Minari's HDF5 format is read."""
    place = path / "data" / METADATA_FILE
    try:
        metadata = read_json(place, max_bytes=_MAX_METADATA)
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is no dataset: it has no data/{METADATA_FILE}") from error
    if not isinstance(metadata, dict):
        raise DatasetError(f"{place} is no metadata of a dataset")
    data_format = metadata.get("data_format", "hdf5")
    if data_format != "hdf5":
        raise DatasetError(
            f"{path} is stored as `{data_format!s:.40}`; only hdf5 is read: save it with Minari's data_format='hdf5'"
        )
    return metadata


def count_of(metadata: Mapping[str, Any], key: str, place: str) -> int:
    """Return a number of episodes or steps in the metadata; `place` is the file in messages."""
    count = metadata.get(key)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise DatasetError(f"{place}: `{key}` is not a number of at least 0")
    return count


def headline(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a list of datasets says about one."""
    ours = metadata.get(OURS)
    env_id = ours.get("env_id") if isinstance(ours, dict) else None
    if isinstance(metadata.get("env_spec"), str):
        spec = parse_json(metadata["env_spec"], f"{name}: env_spec")
        env_id = spec.get("id") if isinstance(spec, dict) else None
    return {
        "dataset": name,
        "episodes": count_of(metadata, "total_episodes", name),
        "steps": count_of(metadata, "total_steps", name),
        "env_id": env_id,
        "algorithm": metadata.get("algorithm_name"),
    }
