"""Where datasets are: ids below Minari's directory, or paths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rl_training.errors import DatasetError, did_you_mean

DATA_FILE = "main_data.hdf5"
METADATA_FILE = "metadata.json"
# Minari's pattern, which asks for folders of two characters at least, without empty folders.
_ID = re.compile(r"(?![-\w]/[-\w]+$)(?:[-\w]+/)*[-\w]+-v\d+", re.ASCII)


def datasets_root() -> Path:
    """Return the directory of all datasets: MINARI_DATASETS_PATH, or Minari's own default."""
    named = os.environ.get("MINARI_DATASETS_PATH")
    return Path(named) if named else Path.home() / ".minari" / "datasets"


def check_id(name: str) -> str:
    """Return a dataset's id if it has the form that Minari asks for, else raise an error."""
    if not _ID.fullmatch(name):
        raise DatasetError(
            f"`{name}` is no id of a dataset: letters, digits, `-` and `_`, in folders if you like, and a version at "
            "the end, such as `pendulum/sac-expert-v0`"
        )
    return name


def dataset_directory(name: str | Path) -> Path:
    """Return the directory of the dataset with an id or a path; it holds `data/metadata.json`."""
    below = datasets_root() / name
    if isinstance(name, str) and _ID.fullmatch(name) and _is_dataset(below):
        return below
    path = Path(name).expanduser()
    for candidate in (path, path.parent):  # the directory `data` is accepted too
        if _is_dataset(candidate) and (candidate == path or path.name == "data"):
            return candidate
    known = list(dataset_ids())
    hint = did_you_mean(str(name), known) or (
        "; `axiomrl dataset list` shows what there is" if known else "; `axiomrl dataset record` makes one"
    )
    raise DatasetError(f"there is no dataset `{name}`, neither below {datasets_root()} nor as a path{hint}")


def dataset_ids(root: Path | None = None) -> Iterator[str]:
    """Return the ids of all datasets below a directory, sorted; nothing behind symbolic links to directories."""
    root = datasets_root() if root is None else root
    found = []
    for directory, folders, _ in os.walk(root, onerror=None):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        if _is_dataset(Path(directory)):
            folders.clear()
            found.append(Path(directory).relative_to(root).as_posix())
    yield from sorted(found)


def _is_dataset(directory: Path) -> bool:
    return (directory / "data" / METADATA_FILE).is_file()
