"""Search spaces from files: a user's, a study's, and the packaged default of each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.safe_yaml import parse_yaml
from rl_training.experiment.configuration.settings_files import read_settings_file
from rl_training.experiment.configuration.validation import Problem, raise_problems
from rl_training.experiment.tuning.adaptation import combination_problems, including, narrowed
from rl_training.experiment.tuning.domains import Domain
from rl_training.experiment.tuning.entries import WHEN, read_domain, read_options
from rl_training.experiment.tuning.searched_keys import SearchedKey, find_key
from rl_training.experiment.tuning.space import Parameter, SearchSpace, in_order

if TYPE_CHECKING:
    from importlib.abc import Traversable


def read_space(path: str | Path, config: TrainConfig) -> SearchSpace:
    """Return the search space of a file for a validated configuration, or raise all its problems together."""
    name = str(path)
    content = parse_yaml(read_settings_file(Path(path)), name)
    if content is None or content == {}:
        raise ConfigError(
            f"{name}: is empty; name a parameter to search, such as `learning_rate: {{log: [1e-5, 1e-2]}}`"
        )
    reading = _reading(content, lambda entry: find_key(entry, config), name)
    space = reading.space(name)
    problems = [reading.renamed(problem) for problem in combination_problems(space, config)]
    raise_problems(problems, lambda _: name)
    return space


def default_space(config: TrainConfig) -> SearchSpace:
    """Return the packaged search space of the configuration's algorithm, adapted to the configuration.

    It contains the configuration's own values, and none that its other settings exclude.
    """
    if config.algo not in space_names():
        raise ConfigError(
            f"{config.algo} has no packaged search space; write one (docs/tuning.md) and give it by --space FILE"
        )
    name = f"search space of {config.algo}"
    content = parse_yaml(_space_root().joinpath(f"{config.algo}.yaml").read_text(encoding="utf-8"), name, quick=True)
    keys = {entry: found for entry in content if isinstance(found := find_key(entry, config), SearchedKey)}
    space = _Reading(keys, {entry: content[entry] for entry in keys}).space(name)
    return narrowed(including(space, config), config)


def space_from_data(content: Any, config: TrainConfig, name: str) -> SearchSpace:
    """Return the space that `SearchSpace.to_data` described, checked as in `read_space` except for combinations.

    `name` is its source in messages.
    """
    return _reading(content, lambda entry: find_key(entry, config), name).space(name)


def described_space(content: Any, name: str) -> SearchSpace:
    """Return the space that `SearchSpace.to_data` described, for reading only.

    Keys and values are not checked against the algorithm, whose code is not loaded.
    """
    return _reading(content, SearchedKey, name).space(name)


def space_names() -> list[str]:
    """Return the algorithms with a packaged search space in alphabetical order."""
    names = [entry.name for entry in _space_root().iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


class _Reading:
    """The entries of a file, by their names in it, on the way to a space."""

    def __init__(self, keys: Mapping[str, SearchedKey | str], content: Mapping[str, Any]) -> None:
        self.content = content
        self.keys = {name: key for name, key in keys.items() if isinstance(key, SearchedKey)}
        self.problems = [Problem((name,), text) for name, text in keys.items() if isinstance(text, str)]
        self.domains: dict[str, Domain] = {}
        for name, key in self.keys.items():
            domain, problems = read_domain(key, content[name], (name,))
            self.problems += problems
            if domain is not None:
                self.domains[name] = domain

    def space(self, source: str) -> SearchSpace:
        """Return the space, or raise all problems together."""
        parameters = [Parameter(self.keys[name].key, domain, self._when(name)) for name, domain in self.domains.items()]
        ordered, problems = in_order(parameters, self._called)
        raise_problems([*self.problems, *problems], lambda _: source)
        return SearchSpace(ordered)

    def renamed(self, problem: Problem) -> Problem:
        """Return a problem of a key as one of its name in the file."""
        return problem._replace(path=(self._called(problem.path[0]), *problem.path[1:]))

    def _when(self, name: str) -> dict[str, tuple[Any, ...]]:
        conditions = self.content[name].get(WHEN, {})
        if not isinstance(conditions, Mapping):
            text = f"must be a mapping such as {{use_sde: true}}, got {conditions!r:.200}"
            self.problems.append(Problem((name, WHEN), text))
            return {}
        found = {}
        for parent, value in conditions.items():
            known = self._find(parent)
            if known in self.domains:
                found[self.keys[known].key] = read_options(value, self.keys[known], self.domains[known])
            elif known not in self.content:  # the problems of an entry that could not be read are reported there
                found[parent] = (value,)
        return found

    def _find(self, parent: str) -> str:
        """Return the name in the file of a parameter that a condition may call by its full key, or the reverse."""
        same = {f"algo_kwargs.{parent}", parent}
        return next((name for name, key in self.keys.items() if name == parent or key.key in same), parent)

    def _called(self, key: str) -> str:
        return next((name for name, found in self.keys.items() if found.key == key), key)


def _reading(content: Any, find: Callable[[str], SearchedKey | str], name: str) -> _Reading:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name}: must be a mapping `parameter: {{kind: values}}`, got {type(content).__name__}")
    return _Reading({str(entry): find(str(entry)) for entry in content}, content)


def _space_root() -> Traversable:
    return resources.files("rl_training.zoo").joinpath("spaces")
