"""Reads one entry of a search space's file, such as `{log: [1e-5, 1e-2], when: {use_sde: true}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.configuration.type_words import describe
from rl_training.experiment.configuration.validation import KeyPath, Problem
from rl_training.experiment.tuning.domains import CHOICE, RANGES, Choice, Domain, Range, as_text
from rl_training.experiment.tuning.searched_keys import SearchedKey

KINDS = (CHOICE, *RANGES)
STEP, WHEN = "step", "when"
_EXAMPLE = "{log: [1e-5, 1e-2]} or {choice: [32, 64]}"


def read_domain(key: SearchedKey, entry: Any, path: KeyPath) -> tuple[Domain | None, list[Problem]]:
    """Return the domain that an entry describes, or the problems that prevent it."""
    if isinstance(entry, list):
        return None, [Problem(path, f"must say how to search; write {{choice: {as_text(entry):.200}}}")]
    if not isinstance(entry, Mapping):
        text = (
            f"must be a mapping such as {_EXAMPLE}, got {as_text(entry):.200}; set what is fixed in the configuration"
        )
        return None, [Problem(path, text)]
    unknown = [name for name in entry if name not in (*KINDS, STEP, WHEN)]
    problems = [
        Problem((*path, name), f"unknown kind of search{did_you_mean(name, KINDS) or f'; there are {_listed(KINDS)}'}")
        for name in unknown
    ]
    kinds = [name for name in entry if name in KINDS]
    if len(kinds) > 1:
        problems.append(Problem(path, f"has several kinds of search, {_listed(kinds)}; keep one"))
    if not kinds and not unknown:
        problems.append(Problem(path, f"has no kind of search; write one of {_listed(KINDS)}"))
    if problems:
        return None, problems
    (kind,) = kinds
    inside = (*path, kind)
    if kind != CHOICE:
        return _read_range(key, kind, entry[kind], entry.get(STEP), inside)
    if STEP in entry:
        return None, [Problem((*path, STEP), "goes with uniform and int only; leave it out")]
    return _read_choice(key, entry[kind], inside)


def read_options(value: Any, key: SearchedKey, domain: Domain) -> tuple[Any, ...]:
    """Return the values that a condition names: one, or a list of them."""

    def fitted(option: Any) -> Any:
        found, problems = key.fit(option, ())
        return option if problems else found

    several = tuple(map(fitted, value)) if isinstance(value, list) else None
    if several is not None and (all(map(domain.contains, several)) or not domain.contains(fitted(value))):
        return several
    return (fitted(value),)


def _read_choice(key: SearchedKey, values: Any, path: KeyPath) -> tuple[Domain | None, list[Problem]]:
    if not isinstance(values, list):
        return None, [Problem(path, f"must be a list of values, got {as_text(values):.200}")]
    fitted, problems = [], []
    for value in values:
        found, faults = key.fit(value, path)
        fitted.append(found)
        problems += faults
    if problems:
        return None, problems
    try:
        return Choice(tuple(fitted)), []
    except ConfigError as error:
        return None, [Problem(path, text) for text in error.problems]


def _read_range(
    key: SearchedKey, kind: str, ends: Any, step: Any, path: KeyPath
) -> tuple[Domain | None, list[Problem]]:
    scale, integer = RANGES[kind]
    if not key.takes_numbers:
        return None, [Problem(path, f"takes no numbers; list values by choice, each {describe(key.hint)}")]
    if not isinstance(ends, list) or len(ends) != 2:
        return None, [Problem(path, f"must be two numbers, [lowest, highest], got {as_text(ends):.200}")]
    if key.takes_integers_only and not integer:
        text = f"takes integers only; write {{{'log_int' if kind == 'log' else 'int'}: {as_text(ends)}}}"
        return None, [Problem(path, text)]
    (low, below), (high, above) = (key.fit(end, path) for end in ends)
    if below or above:
        return None, below + above
    try:
        return Range(low, high, scale, integer, step), []
    except ConfigError as error:
        return None, [Problem(path, text) for text in error.problems]


def _listed(names: Any) -> str:
    return ", ".join(names)
