"""Read YAML as plain data: no object is ever constructed, no key is silently lost."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rl_training.errors import ConfigError

# A few lines of nested aliases can stand for gigabytes once they are followed.
_LARGEST_DOCUMENT = 100_000


class _DistinctKeys(yaml.constructor.SafeConstructor):
    """Refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, yaml.Mark] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            first = seen.setdefault(key_node.value, key_node.start_mark)
            if first is not key_node.start_mark:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"`{key_node.value}` was already set in line {first.line + 1}; remove one of them",
                    key_node.start_mark,
                )
        return super().construct_mapping(node, deep=deep)


class _PlainLoader(_DistinctKeys, yaml.SafeLoader):
    """SafeLoader that reads `1e-3` as a number and refuses repeated keys."""


class _QuickLoader(_DistinctKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by the parser in C, where it is installed: several times faster, with terser messages."""


for _loader in (_PlainLoader, _QuickLoader):
    _loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def parse_yaml(text: str, name: str, *, quick: bool = False) -> Any:
    """Return the plain value that `text` holds; `name` says in messages where it comes from.

    `quick` is for files that a program wrote: many are read at once, and nobody needs the best message.
    """
    try:
        return _Copier(name).copy(yaml.load(text, Loader=_QuickLoader if quick else _PlainLoader))
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(_constructor_message(error, name)) from None
    except yaml.MarkedYAMLError as error:
        place = _place(name, error.problem_mark or error.context_mark)
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{place}: not valid YAML ({reason}); check indentation, colons and quotes") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML ({' '.join(str(error).split())})") from None
    except ValueError as error:  # a date such as 2024-13-45
        raise ConfigError(f"{name}: not valid YAML ({error}); put quotes around text") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply, or an alias (`*name`) contains itself") from None


class _Copier:
    """Copies a loaded document so that no part is shared, within a budget and with text keys only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0

    def copy(self, value: Any) -> Any:
        self.size += 1
        if self.size > _LARGEST_DOCUMENT:
            raise ConfigError(f"{self.name}: too large once its aliases (`*name`) are followed")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise ConfigError(f"{self.name}: key {key!r} must be text; put it in quotes")
            return {key: self.copy(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.copy(item) for item in value]
        if value is not None and not isinstance(value, (str, bool, int, float)):
            # Dates, sets and bytes have no place in the JSON files a run leaves behind.
            kind = type(value).__name__
            raise ConfigError(f"{self.name}: {value!r} was read as a {kind}; put quotes around text")
        return value


def _constructor_message(error: yaml.constructor.ConstructorError, name: str) -> str:
    problem = error.problem or "not plain data"
    if "could not determine a constructor for the tag" in problem:
        tag = problem.split("'")[1].replace("tag:yaml.org,2002:", "!!")
        problem = f"the tag `{tag}` is refused: a configuration holds plain values only; remove the tag"
    return f"{_place(name, error.problem_mark)}: {problem}"


def _place(name: str, mark: Any) -> str:
    return name if mark is None else f"{name}, line {mark.line + 1}"
