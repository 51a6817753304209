"""Reads arrays from an HDF5 file that somebody else may have made.

HDF5 can point to other files, load filters from the system's folders, hold references and objects, and claim any size.
Only plain numbers that lie in the file itself are read, and never more of them than fit into memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import AxiomError, DatasetError, MissingExtraError
from rl_training.experiment.machine import available_memory, in_words

_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}  # part of HDF5 or of h5py itself
_MAX_RATIO = 1100
"""No filter above makes data smaller by more; gzip's limit is 1,032."""
_MAX_CHUNK = 256 << 20
"""Largest chunk in bytes, which is decompressed as a whole."""
_SPARE = 0.5
"""Part of the free memory that one array may take."""


def import_h5py() -> Any:
    """Return h5py, or raise an error that names the extra."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("a dataset", "offline") from error
    return h5py


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for reading; whatever the library raises about it becomes one sentence."""
    h5py = import_h5py()
    if not path.is_file():
        raise DatasetError(f"{path} is no regular file")
    with reading(path), h5py.File(path, "r", locking="best-effort") as file:
        yield file


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever h5py raises while it reads a damaged file into a `DatasetError`."""
    try:
        yield
    except (AxiomError, KeyboardInterrupt, GeneratorExit):
        raise
    except Exception as error:  # h5py raises nearly every built-in exception for damage in one place or another
        reason = " ".join(str(error).split())[:200]
        raise DatasetError(f"{path} is damaged or no HDF5 file: {reason}") from error


def child(group: Any, name: str) -> Any:
    """Return an object of a group; links to elsewhere, in this file or in another, are refused."""
    h5py = import_h5py()
    if "/" in name or name in ("", ".", ".."):
        raise DatasetError(f"{_place(group)}: `{name}` is no name of one object")
    encoded = name.encode()
    if not group.id.links.exists(encoded):
        raise DatasetError(f"{_place(group)} lacks `{name}`")
    if group.id.links.get_info(encoded).type != h5py.h5l.TYPE_HARD:
        raise DatasetError(f"{_place(group)}: `{name}` is a link to somewhere else, which is not followed")
    return group[name]


def subgroup(group: Any, name: str) -> Any:
    """Return a group inside a group."""
    found = child(group, name)
    if not isinstance(found, import_h5py().Group):
        raise DatasetError(f"{_place(found)} is no group")
    return found


def is_numeric(dataset: Any) -> bool:
    """Return whether an HDF5 dataset holds plain numbers."""
    dtype = dataset.dtype
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dataset.shape is not None


def read_array(dataset: Any) -> np.ndarray:
    """Return the content of an HDF5 dataset of plain numbers, after checking that reading it is safe."""
    check_storage(dataset)
    if not is_numeric(dataset):
        raise DatasetError(f"{_place(dataset)} holds {dataset.dtype}, not plain numbers")
    return np.asarray(dataset[()])


def read_bytes(dataset: Any) -> list[bytes]:
    """Return the rows of an HDF5 dataset of byte strings, as Minari stores JPEG images."""
    check_storage(dataset)
    rows = dataset.shape is not None and len(dataset.shape)
    if rows == 1 and import_h5py().check_vlen_dtype(dataset.dtype) == np.uint8:
        return [np.asarray(row, np.uint8).tobytes() for row in dataset[()]]
    if rows == 2 and dataset.dtype == np.uint8:
        return [row.tobytes() for row in dataset[()]]
    raise DatasetError(f"{_place(dataset)} holds no JPEG images, which its metadata announces")


def check_storage(dataset: Any) -> None:
    """Raise an error if an HDF5 dataset lies in other files, needs a foreign filter, or is too large to be true."""
    if not isinstance(dataset, import_h5py().Dataset):
        raise DatasetError(f"{_place(dataset)} is no array")
    created = dataset.id.get_create_plist()
    if dataset.is_virtual or created.get_external_count():
        raise DatasetError(f"{_place(dataset)} lies in other files, which are not read")
    filters = [created.get_filter(index)[0] for index in range(created.get_nfilters())]
    foreign = [str(number) for number in filters if number not in _FILTERS]
    if foreign:
        raise DatasetError(f"{_place(dataset)} needs HDF5's filter {', '.join(foreign)}, which is not loaded")
    stored, claimed, chunks = dataset.id.get_storage_size(), dataset.nbytes, dataset.chunks
    # Without filters the storage is no smaller than the content; what was never written is not stored at all.
    if claimed > (stored * _MAX_RATIO if filters else stored):
        raise DatasetError(f"{_place(dataset)} claims {claimed:,} bytes, but {stored:,} are stored")
    if chunks is not None and math.prod(chunks) * dataset.dtype.itemsize > _MAX_CHUNK:
        raise DatasetError(f"{_place(dataset)} has chunks of more than {_MAX_CHUNK:,} bytes")
    if claimed > 1 << 20:  # asking the system takes longer than reading less
        _check_memory(dataset, claimed)


def _check_memory(dataset: Any, size: int) -> None:
    free = available_memory()
    if size > free * _SPARE:
        raise DatasetError(
            f"{_place(dataset)} takes {in_words(size)} of memory, and {in_words(free)} are free; episodes are read "
            "as a whole"
        )


def _place(thing: Any) -> str:
    return f"{thing.file.filename}: {thing.name}"
