"""The files of code that this user's trainings on this machine have used, stored in the user's state directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError
from rl_training.experiment.storage.files import storage_errors, write_json_atomically
from rl_training.experiment.storage.untrusted import read_json

_FILE = "used_code.json"
_VERSION = 1
_MAX_RECORDS = 10_000  # the oldest are dropped first
_MAX_BYTES = 64 << 20
_KEYS = ("name", "file", "sha256")


def state_directory() -> Path:
    """Return the directory of this user's state: `AXIOMRL_STATE_DIR`, or `axiomrl` below `XDG_STATE_HOME`."""
    if chosen := os.environ.get("AXIOMRL_STATE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "axiomrl"


def remembered(file: str) -> list[Mapping[str, str]]:
    """Return the records of a file: each has the `name` that was requested, the `file` and its `sha256`."""
    return [record for record in _read(state_directory() / _FILE) if record["file"] == file]


def remember(records: Sequence[Mapping[str, str]]) -> None:
    """Add records, so that the same files may be imported again when a checkpoint names them."""
    path = state_directory() / _FILE
    with storage_errors("which code was used", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _exclusive(path.with_name(f".{_FILE}.lock")):
            known = _read(path)
            new = [dict(record) for record in records if record not in known]
            if new:
                write_json_atomically(path, {"version": _VERSION, "used": [*known, *new][-_MAX_RECORDS:]})


def _read(path: Path) -> list[dict[str, str]]:
    try:
        content: Any = read_json(path, max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return []
    used = content.get("used") if isinstance(content, dict) else None
    if not isinstance(used, list) or not all(_is_record(record) for record in used):
        raise AxiomError(f"{path} does not list the code that trainings used; delete it to begin a new list")
    return used


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and set(record) == set(_KEYS) and all(isinstance(v, str) for v in record.values())


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file; wait while another process of this user holds it."""
    with path.open("ab") as lock:
        if os.name == "posix":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
