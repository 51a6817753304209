"""The key `callbacks:` of a configuration: names of callback classes, with their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.experiment.configuration.validation import Problem
from rl_training.experiment.own_code.named_objects import NamedObject, check_named_objects, named_objects

CALLBACKS = "callbacks"


def named_callbacks(entries: Sequence[Any]) -> list[NamedObject]:
    """Return the entries of a validated list."""
    return named_objects(entries, CALLBACKS)


def check_callbacks(values: dict[str, Any]) -> list[Problem]:
    """Return the problems in the form of the entries."""
    return check_named_objects(values.get(CALLBACKS, ()), (CALLBACKS,))


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
