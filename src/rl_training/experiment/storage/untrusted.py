"""Reads files that somebody else may have made: regular files only, bounded in size, depth and numbers.

Nothing is executed, nothing blocks on a pipe or a device, and the result is plain data that can be traversed, copied
and printed without exhausting stack or memory. Every error is one sentence that names the file; the content is checked
by the caller's schema.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rl_training.errors import AxiomError

if TYPE_CHECKING:  # exported policies are loaded by this module, and should be quickly
    from pathlib import Path

MAX_DEPTH = 100
"""Largest nesting depth of lists and mappings."""
MAX_TEXT_BYTES = 256 << 20
"""Largest size of a text file in bytes: far more than any state or metrics file of a real run."""
MAX_INTEGER = 1 << 128
"""Bits of the largest integer that a run writes: the state of NumPy's generator."""


class UntrustedFileError(AxiomError):
    """A file that this package cannot have written; the message names the file and the fault."""


def read_bytes(path: str | Path, *, max_bytes: int) -> bytes:
    """Return the content of a regular file; a missing file raises `FileNotFoundError` as usual."""
    try:
        # Non-blocking, because opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UntrustedFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedFileError(f"{path} is not a regular file")
        if status.st_size > max_bytes:
            raise UntrustedFileError(f"{path} has {status.st_size:,} bytes; at most {max_bytes:,} are read")
        with open(descriptor, "rb", closefd=False) as file:
            # Not `max_bytes`: a read allocates the number of bytes that it is given.
            return file.read(status.st_size)
    except OSError as error:
        raise UntrustedFileError(f"{path} cannot be read: {error}") from error
    finally:
        os.close(descriptor)


def read_text(path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the UTF-8 text of a regular file; a missing file raises `FileNotFoundError` as usual."""
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UntrustedFileError(f"{path} cannot be read: {error}") from error


def refuse_constant(constant: str) -> Any:
    """Refuse `NaN`, `Infinity` and `-Infinity`, which strict JSON does not have."""
    raise ValueError(f"{constant} is not a number")


def parse_json(text: str, name: str, *, constant: Callable[[str], Any] = refuse_constant) -> Any:
    """Return the plain value of strict JSON, bounded in depth and numbers; `name` is its source in messages.

    `constant` may give `NaN`, `Infinity` and `-Infinity` a value, for files of programs that write them.
    """
    try:
        value = json.loads(text, parse_constant=constant)
    except RecursionError:
        raise UntrustedFileError(f"{name} is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise UntrustedFileError(f"{name} is not valid JSON: {error}") from None
    check_bounds(value, name)
    return value


def read_json(path: str | Path, *, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """Return the plain value in a JSON file; a missing file raises `FileNotFoundError` as usual."""
    return parse_json(read_text(path, max_bytes=max_bytes), str(path))


def check_bounds(value: Any, name: str) -> None:
    """Raise an error for too deep nesting and for numbers that no run writes, without recursion."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise UntrustedFileError(f"{name} is nested more than {MAX_DEPTH} levels deep")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, int):
                if abs(item) >= MAX_INTEGER:
                    raise UntrustedFileError(f"{name} holds an integer of more than 128 bits")
            elif isinstance(item, float) and not math.isfinite(item):
                raise UntrustedFileError(f"{name} holds a number too large for a float")
        level = below
