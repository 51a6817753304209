"""Reads the files of a run directory that somebody else may have made, with a short reason for each fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.runs import METADATA, METADATA_SCHEMA_VERSION
from rl_training.experiment.storage.untrusted import MAX_INTEGER, UntrustedFileError, parse_json, read_text

STATUSES = ("completed", "running", "interrupted", "failed")
LARGEST_VALUE = 1e100
"""No metric reaches this; means, squares and differences of smaller numbers are finite."""
_LONGEST_NAME = 200  # characters

_METADATA_TYPES: dict[str, type | tuple[type, ...]] = {
    "algo": str,
    "env_id": str,
    "seed": int,
    "status": str,
    "error": (str, type(None)),
    "created_at_utc": str,
    "finished_at_utc": (str, type(None)),
    "latest_metrics": dict,
}


class UnreadableError(Exception):
    """The reason why a run directory cannot be read."""


def read_run_file(run_dir: Path, name: str, *, may_be_empty: bool = False) -> str:
    """Return the text of one of a run's files."""
    try:
        text = read_text(run_dir / name)  # does not block on a pipe or a device
    except FileNotFoundError:
        raise UnreadableError(f"{name} is missing") from None
    except UntrustedFileError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise UnreadableError(f"{name} is damaged: byte {error.__cause__.start} is not text") from None
        raise UnreadableError(str(error).replace(str(run_dir / name), name)) from None
    if not text and not may_be_empty:
        raise UnreadableError(f"{name} is empty")
    if "\0" in text:
        raise UnreadableError(f"{name} is damaged: it holds zero bytes")
    return text


def read_run_metadata(run_dir: Path) -> dict[str, Any]:
    """Return the checked part of a run's metadata that reports use."""
    try:
        metadata = _object(parse_json(read_run_file(run_dir, METADATA), METADATA), METADATA)
    except UntrustedFileError as error:
        raise UnreadableError(str(error)) from None
    version = metadata.get("schema_version")
    if version is None:
        raise UnreadableError(f"{METADATA} is not that of an AxiomRL run: it has no schema_version")
    if version != METADATA_SCHEMA_VERSION:
        raise UnreadableError(
            f"{METADATA} has schema version {_short(version)}; this release reads {METADATA_SCHEMA_VERSION}"
        )
    for key, kind in _METADATA_TYPES.items():
        value = metadata.setdefault(key, None)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _foreign(key, value)
    for key in ("algo", "env_id"):
        if not is_name(metadata[key]):
            raise _foreign(key, metadata[key])
    if metadata["status"] not in STATUSES:
        raise UnreadableError(f"{METADATA} has the unknown status {_short(metadata['status'])}")
    return metadata


def read_row(line: str, place: str, *, cut_off: bool = False) -> dict[str, Any]:
    """Return one row of metrics; `cut_off` says that the line may be incomplete."""
    try:
        # Not by `parse_json`: a non-finite number loses only its own value, not the run.
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a number too long"
        raise UnreadableError(f"{place} is cut off" if cut_off else f"{place} is not JSON: {reason}") from None
    return _object(value, place)


def row_step(row: Mapping[str, Any], place: str) -> int:
    """Return the step of a row of metrics; raise an error if it is not one."""
    step = row.get("global_step")
    known = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < MAX_INTEGER
    if not known or row.get("event") not in ("train", "eval"):
        raise UnreadableError(f"{place}: not a row of an AxiomRL run: it lacks event or global_step")
    number: int = row["global_step"]
    return number


def finite(value: Any) -> float | None:
    """Return a number of a row as a float, None if it is not finite or too large for a metric."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    # JSON integers may exceed every float; comparing them does not convert them.
    return float(value) if -LARGEST_VALUE <= value <= LARGEST_VALUE else None


def is_name(value: Any) -> bool:
    """Return whether a value may be used in names of entries, in sentences and on terminals."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableError(f"{place} does not hold an object")
    return value


def _foreign(key: str, value: Any) -> UnreadableError:
    return UnreadableError(f"{METADATA} is not that of an AxiomRL run: its {key} is {_short(value)}")


def _short(value: Any) -> str:
    """Return a value in short form for a reason."""
    text = repr(value)
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."
