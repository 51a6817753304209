"""The key `callbacks:` of a configuration: names of callback classes, with their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl_training.experiment.configuration.validation import Problem, check_plain
from rl_training.experiment.own_code.user_code import split_name

CALLBACKS = "callbacks"
USE = "use"


class NamedCallback(NamedTuple):
    """One entry of the list."""

    name: str
    """`module:Name` or `path/to/file.py:Name`."""
    arguments: Mapping[str, Any]
    place: str
    """The key of the entry, as used in error messages and for its state in checkpoints."""


def named_callbacks(entries: Sequence[Any]) -> list[NamedCallback]:
    """Return the entries of a validated list of texts and mappings with `use` and arguments."""
    found = []
    for number, entry in enumerate(entries):
        arguments = {USE: entry} if isinstance(entry, str) else dict(entry)
        found.append(NamedCallback(arguments.pop(USE), arguments, f"{CALLBACKS}.{number}"))
    return found


def check_callbacks(values: dict[str, Any]) -> list[Problem]:
    """Return the problems in the form of the entries; the names are resolved when a run is set up."""
    problems: list[Problem] = []
    for number, entry in enumerate(values.get(CALLBACKS, ())):
        path = (CALLBACKS, str(number))
        name, place = (entry, path) if isinstance(entry, str) else (entry.get(USE), (*path, USE))
        if name is None:
            hint = ", without a space behind the colon" if len(entry) == 1 and USE not in entry else ""
            problems.append(Problem(place, f"is required; set it to module:Name or path/to/file.py:Name{hint}"))
        elif not isinstance(name, str) or not all(split_name(name)):
            problems.append(Problem(place, f"must be module:Name or path/to/file.py:Name, got {name!r:.200}"))
        elif not isinstance(entry, str):
            problems += check_plain(entry, path)
    return problems


def kept_states(before: Sequence[Any], after: Sequence[Any], states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states to be kept when the list changes: those of equal entries, in order."""
    old = named_callbacks(before)
    kept = {key: state for key, state in states.items() if not key.startswith(f"{CALLBACKS}.")}
    for entry in named_callbacks(after):
        same = next((one for one in old if one[:2] == entry[:2]), None)
        if same is not None:
            old.remove(same)
            if same.place in states:
                kept[entry.place] = states[same.place]
    return kept


def dropped_callbacks(before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    """Return a message for each callback that a changed list no longer contains."""
    left = named_callbacks(after)
    sentences = []
    for old in named_callbacks(before):
        same = next((one for one in left if one[:2] == old[:2]), None)
        if same is not None:
            left.remove(same)
            continue
        given = ", ".join(f"{key}: {value}" for key, value in old.arguments.items())
        what = f"{old.name} ({given})" if given else old.name
        sentences.append(f"{CALLBACKS}: {what} is not in the fork; its state in the checkpoint is dropped")
    return sentences
