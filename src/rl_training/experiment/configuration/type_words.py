"""Describes in words what a type annotation accepts: `Annotated[int, Ge(1)]` is "an integer >= 1"."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types

_PLAIN_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "null",
    Any: "any value",
}


def describe(hint: Any) -> str:
    """Return a description of `hint` that fits after "must be"."""
    if get_origin(hint) is Annotated:
        return _describe_annotated(hint)
    if is_union(hint):
        return " or ".join(describe(member) for member in get_args(hint))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in arguments)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return f"a list of {len(arguments)}: " + ", ".join(describe(item) for item in arguments)
    if origin in (tuple, list):
        return f"a list (each item {describe(arguments[0])})"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "a mapping"
    return _PLAIN_NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def members(hint: Any) -> list[Any]:
    """Return the alternatives of a union (flattened, without null), or the annotation itself."""
    bare = strip_metadata(hint)
    if is_union(bare):
        return [inner for member in get_args(bare) for inner in members(member)]
    return [] if bare is type(None) else [hint]


def literal_options(hint: Any) -> list[str]:
    """Return the literal values that `hint` accepts."""
    options = [get_args(kind) for kind in map(strip_metadata, members(hint)) if get_origin(kind) is Literal]
    return [str(option) for group in options for option in group]


def strip_metadata(hint: Any) -> Any:
    """Return the type inside `Annotated`."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def is_union(hint: Any) -> bool:
    """Return whether `hint` is `A | B` in either spelling."""
    return get_origin(hint) in (Union, types.UnionType)


def _describe_annotated(hint: Any) -> str:
    base, *metadata = get_args(hint)
    words = describe(base)
    bounds = []
    for entry in metadata:
        if isinstance(entry, annotated_types.DocInfo):
            return entry.documentation
        bounds += _bounds(entry)
    return f"{words} {' and '.join(bounds)}" if bounds else words


def _bounds(entry: Any) -> list[str]:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    found = [(sign, getattr(entry, name, None)) for name, sign in signs.items()]
    words = [f"{sign} {bound}" for sign, bound in found if bound is not None]
    shortest = getattr(entry, "min_length", None)
    if shortest:
        words.append("that is not empty" if shortest == 1 else f"of length >= {shortest}")
    return words
