"""Reads YAML as plain data: no object is constructed, no repeated key is accepted, and size is bounded."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rl_training.errors import ConfigError
from rl_training.experiment.storage.untrusted import MAX_DEPTH, MAX_INTEGER

# A few lines of nested aliases or merge keys can expand to gigabytes.
_LARGEST_DOCUMENT = 100_000
_LONGEST_TEXT = 1 << 20  # characters; the largest configuration of the zoo has a few thousand
_LONGEST_NUMBER = 400  # characters: enough for every float and every integer of 128 bits, and quick to parse


class _DistinctKeys(yaml.constructor.SafeConstructor):
    """Refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, yaml.Mark] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refusal("a key must be text", key_node)
            first = seen.setdefault(key_node.value, key_node.start_mark)
            if first is not key_node.start_mark:
                problem = f"`{key_node.value}` was already set in line {first.line + 1}; remove one of them"
                raise _refusal(problem, key_node)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        _check_number(node)
        number: int = super().construct_yaml_int(node)
        if abs(number) >= MAX_INTEGER:
            raise _refusal("the integer has more than 128 bits; write a smaller one, or text in quotes", node)
        return number

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        _check_number(node)
        number: float = super().construct_yaml_float(node)
        return number


def _check_number(node: yaml.ScalarNode) -> None:
    if len(node.value) > _LONGEST_NUMBER:
        raise _refusal(f"the number has more than {_LONGEST_NUMBER} characters; put quotes around text", node)


def _refusal(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _PlainLoader(_DistinctKeys, yaml.SafeLoader):
    """SafeLoader that reads `1e-3` as a number and refuses repeated keys."""


class _QuickLoader(_DistinctKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same with the C parser if it is installed: several times faster, with shorter messages."""


for _loader in (_PlainLoader, _QuickLoader):
    for _kind in ("int", "float"):  # by name, otherwise the method of the base class would be called
        _loader.add_constructor(f"tag:yaml.org,2002:{_kind}", getattr(_DistinctKeys, f"construct_yaml_{_kind}"))
    _loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def parse_yaml(text: str, name: str, *, quick: bool = False) -> Any:
    """Return the plain value of `text`; `name` is its source in error messages.

    `quick` is for files written by a program: many are read at once, and short messages are enough.
    """
    if len(text) > _LONGEST_TEXT:
        raise ConfigError(f"{name}: has {len(text):,} characters; at most {_LONGEST_TEXT:,} are read")
    loader = _QuickLoader if quick else _PlainLoader
    try:
        try:
            _check_shape(text, name, _QuickLoader)
        except yaml.YAMLError:  # the other parser has a better message for it, or accepts it
            _check_shape(text, name, loader)
        return _plain_copy(yaml.load(text, Loader=loader), name)
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(_constructor_message(error, name)) from None
    except yaml.MarkedYAMLError as error:
        place = _place(name, error.problem_mark or error.context_mark)
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{place}: not valid YAML ({reason}); check indentation, colons and quotes") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML ({' '.join(str(error).split())})") from None
    except (ValueError, OverflowError, LookupError) as error:  # a date such as 2024-13-45, or `!!bool x`
        raise ConfigError(f"{name}: not valid YAML ({error}); put quotes around text") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply") from None


def _check_shape(text: str, name: str, loader: Any) -> None:
    """Raise an error for a document that is nested too deeply or expands too far, before it is constructed.

    Construction recurses, in C without a limit; this goes through the parser's events one by one.
    """
    sizes: dict[str | None, int | None] = {}  # nodes that each anchor expands to; None while it is open
    opened: list[tuple[str | None, int]] = []  # the anchor of each open list or mapping, and the nodes before it
    total = 0
    for event in yaml.parse(text, Loader=loader):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(anchor, 1)  # the loader reports an unknown one
            if size is None:
                raise ConfigError(f"{name}: nested too deeply: the alias `*{anchor}` contains itself")
            total += size
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            sizes[anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((anchor, total))
            total += 1
            sizes[anchor] = None
            if len(opened) > MAX_DEPTH:
                raise ConfigError(f"{name}: nested too deeply: lists and mappings go {MAX_DEPTH} levels deep at most")
        elif isinstance(event, yaml.CollectionEndEvent):
            closed, before = opened.pop()
            sizes[closed] = total - before
        if total > _LARGEST_DOCUMENT:
            raise ConfigError(f"{name}: too large once its aliases (`*name`) are followed")


def _plain_copy(value: Any, name: str) -> Any:
    """Return a copy of a document in which no part is shared and all keys are text."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{name}: key {key!r} must be text; put it in quotes")
        return {key: _plain_copy(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_copy(item, name) for item in value]
    if value is not None and not isinstance(value, (str, bool, int, float)):
        # Dates, sets and bytes cannot be stored in the JSON files of a run.
        raise ConfigError(f"{name}: {value!r} was read as a {type(value).__name__}; put quotes around text")
    return value


def _constructor_message(error: yaml.constructor.ConstructorError, name: str) -> str:
    problem = error.problem or "not plain data"
    if "could not determine a constructor for the tag" in problem:
        tag = problem.split("'")[1].replace("tag:yaml.org,2002:", "!!")
        problem = f"the tag `{tag}` is refused: a configuration holds plain values only; remove the tag"
    return f"{_place(name, error.problem_mark)}: {problem}"


def _place(name: str, mark: Any) -> str:
    return name if mark is None else f"{name}, line {mark.line + 1}"
