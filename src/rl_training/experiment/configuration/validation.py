"""Checks plain data against a parameter dataclass, with error messages that name the repair.

A record is a stdlib dataclass whose annotations contain the ranges (`Annotated[int, Ge(1)]`). pydantic decides whether
a value fits, strictly: `true` is not an integer and `"8"` is not a number. The messages are our own, so that each names
the key, the expectation and the repair in the same form.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.configuration.type_words import describe, literal_options, members, strip_metadata

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KeyPath = tuple[str, ...]
Source = Callable[[KeyPath], str]
Record = TypeVar("Record")

# YAML 1.1 reads `1e-3` as text because the mantissa has no dot; the user means a number.
_EXPONENT_NUMBER = re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+")
# How RL Zoo writes a value that falls linearly to 0.
_LINEAR_VALUE = re.compile(r"lin_(\d[\d.eE+-]*)")


class Problem(NamedTuple):
    """One error: its key path and its message."""

    path: KeyPath
    text: str


def check_record(
    record: type,
    raw: Mapping[str, Any],
    path: KeyPath = (),
    *,
    unknown: Callable[[str, Iterable[str]], str] | None = None,
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values of `raw` that fit the fields of `record`, and a problem for each that does not.

    `unknown(name, fields)` makes the message for a key that is not a field.
    """
    fields = {field.name: field for field in dataclasses.fields(record)}
    hints = field_types(record)
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in raw.items():
        name = str(key)
        if name not in fields:
            problems.append(Problem((*path, name), (unknown or unknown_key)(name, fields)))
            continue
        fitted, found = check_value(hints[name], value, (*path, name))
        if found and f"{name}_schedule" in fields:
            found = [problem._replace(text=problem.text + _schedule_repair(name, value)) for problem in found]
        problems += found
        if not found:
            values[name] = fitted
    for name, field in fields.items():
        if name not in raw and is_required(field):
            problems.append(Problem((*path, name), f"is required; set it to {describe(hints[name])}"))
    return values, problems


def check_value(hint: Any, value: Any, path: KeyPath) -> tuple[Any, list[Problem]]:
    """Return `value` in the type of `hint`, or the problems that prevent it."""
    value = plain(value)
    nested = next((member for member in members(hint) if dataclasses.is_dataclass(member)), None)
    if nested is not None and isinstance(value, dict):
        assert isinstance(nested, type)
        return _check_nested(nested, value, path)
    if get_origin(strip_metadata(hint)) is dict:
        return _check_mapping(hint, value, path)
    value = _as_intended_number(_as_intended_word(value, hint), hint)
    if _has_non_finite(value):
        return None, [Problem(path, f"must be {describe(hint)}, got {value!r:.200}, which is not finite")]
    from pydantic import ValidationError

    try:
        # JSON is the strict mode that accepts lists for tuples and text for paths.
        return _adapter(hint).validate_json(json.dumps(value), strict=True), []
    except (ValidationError, TypeError):
        return None, [Problem(path, f"must be {describe(hint)}, got {value!r:.200}{_repair(hint, value)}")]


def build_record(record: type[Record], raw: Mapping[str, Any], path: KeyPath = ()) -> Record:
    """Return the record described by `raw`, or raise all problems together."""
    values, problems = check_record(record, raw, path)
    raise_problems(problems)
    return record(**values)


def raise_problems(problems: Iterable[Problem], source: Source | None = None) -> None:
    """Raise one `ConfigError` with a line per problem; return if there is none."""
    lines = []
    for problem in problems:
        place = ".".join(problem.path)
        origin = source(problem.path) if source is not None else ""
        lines.append(": ".join(part for part in (origin, place, problem.text) if part))
    if lines:
        raise ConfigError(lines)


def file_problems(record: Any, texts: Iterable[str], path: KeyPath) -> list[Problem]:
    """Return a record's own error messages as problems; `<field>: sentence` is assigned to that field.

    The message may also contain the whole key, `algo_kwargs.<field>: sentence`.
    """
    names = "|".join(field.name for field in dataclasses.fields(record))
    prefix = re.escape(".".join(path))
    problems = []
    for text in texts:
        named = re.match(rf"(?:{prefix}\.)?({names}): ", text)
        key = (*path, named[1]) if named else path
        problems.append(Problem(key, text[named.end() :] if named else text))
    return problems


def unknown_key(name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown key."""
    known = sorted(known)
    return f"unknown key{did_you_mean(name, known) or '; valid keys: ' + ', '.join(known)}"


def plain(value: Any) -> Any:
    """Return `value` as dicts, lists and scalars that YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A nested record contains only the values that were set, so that a saved config stays readable.
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if is_required(field) or getattr(value, field.name) != field_default(field)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()  # a NumPy scalar from a Python caller
    return value


def check_plain(value: Any, path: KeyPath) -> list[Problem]:
    """Return the problems of a value that no record describes: it must be valid in strict JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except TypeError:
        text = f"must be plain data (text, numbers, true, false, null, lists, mappings), got {value!r:.200}"
    except ValueError:
        text = f"must be finite, got {value!r:.200}; write a large number such as 1e30 instead"
    else:
        return []
    return [Problem(path, text)]


def record_to_dict(record: Any) -> dict[str, Any]:
    """Return every field of `record`, defaults included, as plain data."""
    return {field.name: plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


@cache
def field_types(record: type) -> Mapping[str, Any]:
    """Return each field's annotation with its ranges."""
    hints = get_type_hints(record, include_extras=True)
    return MappingProxyType({field.name: hints[field.name] for field in dataclasses.fields(record)})


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Return whether a record cannot be made without this field."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def field_default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of an optional field."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _check_nested(record: type, value: dict[str, Any], path: KeyPath) -> tuple[Any, list[Problem]]:
    values, problems = check_record(record, value, path)
    if problems:
        return None, problems
    built = record(**values)
    return built, file_problems(built, built.problems(), path) if hasattr(built, "problems") else []


def _check_mapping(hint: Any, value: Any, path: KeyPath) -> tuple[Any, list[Problem]]:
    if value is None:
        return {}, []  # `algo_kwargs:` with nothing under it
    if not isinstance(value, dict):
        return None, [Problem(path, f"must be {describe(hint)}, got {value!r:.200}")]
    return value, []


def _as_intended_number(value: Any, hint: Any) -> Any:
    """Convert `"1e-3"` and `8.0` to the type of number that the field needs; leave all else unchanged."""
    types = [strip_metadata(member) for member in members(hint)]
    if isinstance(value, list):
        items = [get_args(kind)[0] for kind in types if get_origin(kind) in (tuple, list)]
        return [_as_intended_number(item, items[0]) for item in value] if len(items) == 1 else value
    is_number = float in types or int in types
    if isinstance(value, str) and is_number and str not in types and _EXPONENT_NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and int in types and float not in types and value.is_integer():
        return int(value)
    return value


def _as_intended_word(value: Any, hint: Any) -> Any:
    """Convert the booleans that YAML 1.1 makes of `off` and `on` back to text if the field has these options."""
    word = "on" if value is True else "off"
    return word if isinstance(value, bool) and word in literal_options(hint) else value


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, list):
        return any(_has_non_finite(item) for item in value)
    return isinstance(value, float) and not math.isfinite(value)


def _schedule_repair(name: str, value: Any) -> str:
    linear = _LINEAR_VALUE.fullmatch(value) if isinstance(value, str) else None
    if linear is None:
        return ""
    return f"; a linear schedule is two keys here, `{name}: {linear[1]}` and `{name}_schedule: linear`"


def _repair(hint: Any, value: Any) -> str:
    if not isinstance(value, str):
        return ""
    options = literal_options(hint)
    if options:
        return did_you_mean(value, options)
    types = [strip_metadata(member) for member in members(hint)]
    if (int in types or float in types) and re.fullmatch(r"[-+]?[\d.]+", value):
        return "; write the number without quotes"
    if bool in types and value.lower() in ("yes", "no", "on", "off", "true", "false"):
        return "; write true or false without quotes"
    return ""


@cache
def _cached_adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(hint)
    except TypeError:  # metadata that cannot be hashed
        return _cached_adapter.__wrapped__(hint)


__all__ = [
    "KeyPath",
    "Problem",
    "Source",
    "build_record",
    "check_plain",
    "check_record",
    "check_value",
    "field_default",
    "field_types",
    "file_problems",
    "is_required",
    "plain",
    "raise_problems",
    "record_to_dict",
    "unknown_key",
]
