"""Durable writing of files, with errors that name the place and the repair."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rl_training.errors import AxiomError, StorageError

_REPAIRS = {
    errno.ENOSPC: "the disk is full; free some space or choose another output directory (--output-dir)",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another output directory (--output-dir)",
    errno.EFBIG: "the file size limit is reached; raise it or choose another output directory (--output-dir)",
    errno.EROFS: "the file system is read-only; choose another output directory (--output-dir)",
    errno.EACCES: "permission is denied; change the permissions or choose another output directory (--output-dir)",
    errno.EPERM: "permission is denied; change the permissions or choose another output directory (--output-dir)",
    errno.ENOTDIR: "a file stands where a directory is needed; choose another output directory (--output-dir)",
    errno.EEXIST: "a file stands where a directory is needed; choose another output directory (--output-dir)",
}


@contextmanager
def storage_errors(what: str, path: Path) -> Iterator[None]:
    """Turn operating-system errors while writing `what` into a `StorageError`."""
    try:
        yield
    except OSError as error:
        repair = _REPAIRS.get(error.errno or 0, error.strerror or str(error))
        raise StorageError(f"cannot write {what} in {path}: {repair}") from error


@contextmanager
def safetensors_errors() -> Iterator[None]:
    """Turn what safetensors makes of an operating-system error, as "... (os error 28)", back into an `OSError`."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        code = int(number.group(1))
        raise OSError(code, os.strerror(code)) from error


def sha256_of(path: Path) -> str:
    """Return the hash of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sync_file(path: Path) -> None:
    """Force a file's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Force a directory's entries to the disk, where the system can."""
    if os.name == "posix":
        sync_file(path)


def write_json_atomically(path: Path, data: Any) -> None:
    """Replace a JSON file at once: a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")  # one name, so that a kill leaves at most one behind
    try:
        temporary.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        sync_file(temporary)
        os.replace(temporary, path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def hold_lock(path: Path, *, taken: str) -> IO[bytes] | None:
    """Hold a lock file for this process, or refuse with the sentence `taken` where another one holds it.

    The system releases it however the process ends; None where the system has no such locks.
    """
    if os.name != "posix":
        return None
    import fcntl

    with storage_errors("a lock", path.parent):
        lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise AxiomError(taken) from error
    return lock
