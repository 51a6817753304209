"""Durable writing of files, with error messages that name the place and the repair.

Nothing outside of a run is changed: writing, truncating and deleting do not follow symbolic links.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
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
    errno.ELOOP: "a symbolic link stands there, and nothing outside of a run is changed; put what it leads to there",
}
GONE = "it was removed or replaced while the run was going on, so the run ends here; resume it from what is left"


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
    """Turn safetensors' text of an operating-system error, "... (os error 28)", back into an `OSError`."""
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


def open_to_append(path: Path) -> IO[bytes]:
    """Open or create a regular file for appending; a symbolic link or a pipe raises an `OSError`."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
    return os.fdopen(descriptor, "ab")


def make_directory(path: Path) -> None:
    """Create a directory unless it exists; a symbolic link in its place raises an `OSError`."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path.name} is a symbolic link")
    path.mkdir(exist_ok=True)


def is_own_directory(path: Path) -> bool:
    """Return whether there is a directory that is not a symbolic link."""
    return path.is_dir() and not path.is_symlink()


def check_still_there(file: IO[bytes], path: Path) -> None:
    """Raise an error if an open file was renamed or removed: what is written to it would be lost."""
    try:
        same = os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        same = False
    if not same:
        raise StorageError(f"cannot write {path.name} in {path.parent}: {GONE}")


def replace_text(path: Path, text: str) -> None:
    """Replace a text file atomically: a reader sees the old content or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")  # a fixed name, so that a killed process leaves at most one behind
    try:
        temporary.unlink(missing_ok=True)  # if it were a link, writing would follow it
        temporary.write_text(text, encoding="utf-8")
        sync_file(temporary)
        os.replace(temporary, path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Sync a file's content to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync a directory's entries to disk, if the system supports it."""
    if os.name == "posix":
        sync_file(path)


def write_json_atomically(path: Path, data: Any) -> None:
    """Replace a JSON file atomically."""
    replace_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def hold_lock(path: Path, *, taken: str) -> IO[bytes] | None:
    """Hold a lock file for this process; raise an error with the message `taken` if another process holds it.

    The system releases it when the process ends; returns None on systems without such locks.
    """
    if os.name != "posix":
        return None
    import fcntl

    with storage_errors("a lock", path.parent):
        lock = open_to_append(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise AxiomError(taken) from error
    return lock
