"""Lists of objects that a configuration names by their classes: callbacks, and wrappers of environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl_training.experiment.configuration.validation import KeyPath, Problem, check_plain

USE = "use"


class NamedObject(NamedTuple):
    """One entry of such a list."""

    name: str
    """`module:Name` or `path/to/file.py:Name`."""
    arguments: Mapping[str, Any]
    place: str
    """The key of the entry, as used in error messages and for its state in checkpoints."""


def named_objects(entries: Sequence[Any], key: str) -> list[NamedObject]:
    """Return the entries of a validated list of texts and mappings with `use` and arguments."""
    found = []
    for number, entry in enumerate(entries):
        arguments = {USE: entry} if isinstance(entry, str) else dict(entry)
        found.append(NamedObject(arguments.pop(USE), arguments, f"{key}.{number}"))
    return found


def check_named_objects(entries: Sequence[Any], path: KeyPath) -> list[Problem]:
    """Return the problems in the form of the entries; the names are resolved when a run is set up."""
    problems: list[Problem] = []
    for number, entry in enumerate(entries):
        here = (*path, str(number))
        name, place = (entry, here) if isinstance(entry, str) else (entry.get(USE), (*here, USE))
        if name is None:
            hint = ", without a space behind the colon" if len(entry) == 1 and USE not in entry else ""
            problems.append(Problem(place, f"is required; set it to module:Name or path/to/file.py:Name{hint}"))
        elif not isinstance(name, str) or not all(name.rpartition(":")[::2]):
            problems.append(Problem(place, f"must be module:Name or path/to/file.py:Name, got {name!r:.200}"))
        elif not isinstance(entry, str):
            problems += check_plain(entry, here)
    return problems
