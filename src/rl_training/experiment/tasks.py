"""The tasks of a run: one environment for most algorithms, a list of them for those that learn several at once.

`env_kwargs.tasks` lists a suite, and `env_id` is its name. Wrapper keys outside the list apply to every task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import MinLen

from rl_training.errors import AxiomError, ConfigError, did_you_mean
from rl_training.experiment.configuration.env_params import MODES, WRAPPER_KEYS, EnvParams, check_env_kwargs, env_params
from rl_training.experiment.configuration.validation import (
    KeyPath,
    Problem,
    check_value,
    field_types,
    plain,
    raise_problems,
)

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

TASKS = "tasks"
_PATH: KeyPath = ("env_kwargs", TASKS)


@dataclass(frozen=True)
class TaskKeys:
    """The keys of a task in `env_kwargs.tasks`, besides those of its environment."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    env_id: Annotated[str, MinLen(1)]
    """The environment, like `env_id` of a single task."""
    name: Annotated[str, MinLen(1)] | None = None
    """Name of the task in metrics and reports; null: its env_id."""
    target_return: float | None = None
    """Mean evaluation return from which the task counts as solved."""
    random_return: float | None = None
    """Mean return of random actions; used with the target to normalise the task's score."""


@dataclass(frozen=True, eq=False)
class Task:
    """One environment of a run, compared by identity."""

    name: str
    env_id: str
    env_kwargs: Mapping[str, Any]
    target_return: float | None = None
    random_return: float | None = None

    def normalized(self, score: float) -> float | None:
        """Return the score scaled to 0 at random and 1 at the target, None if these are unknown."""
        if self.target_return is None or self.random_return is None:
            return None
        return (score - self.random_return) / (self.target_return - self.random_return)


def is_suite(config: TrainConfig) -> bool:
    """Return whether the run has a list of tasks, so that its metrics are named by task."""
    return lists_environments(config.env_kwargs)


def lists_environments(env_kwargs: Mapping[str, Any]) -> bool:
    """Return whether `tasks` is a list of tasks, not an environment's argument of the same name."""
    entries = env_kwargs.get(TASKS)
    return isinstance(entries, (list, tuple)) and any(
        isinstance(task, Mapping) and "env_id" in task for task in entries
    )


def tasks_of(config: TrainConfig) -> tuple[Task, ...]:
    """Return the tasks of a run in their order."""
    if not is_suite(config):
        return (Task(config.task_name, config.env_id or "", config.env_kwargs),)
    tasks, problems = read_tasks(config.env_kwargs)
    raise_problems(problems)
    return tuple(tasks)


def choose_task(tasks: Sequence[Task], name: str | None) -> Task:
    """Return the task called `name`, or the only one."""
    known = ", ".join(task.name for task in tasks)
    if name is None:
        if len(tasks) > 1:
            raise AxiomError(f"this policy knows several tasks; name one of {known}")
        return tasks[0]
    for task in tasks:
        if task.name == name:
            return task
    hint = did_you_mean(name, [task.name for task in tasks]) or f"; there are {known}"
    raise ConfigError(f"unknown task `{name}`{hint}")


def check_suite(env_kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return `env_kwargs` of a suite as plain data, and all problems found."""
    _, problems = read_tasks(env_kwargs)
    return plain(env_kwargs), problems


def read_tasks(env_kwargs: Mapping[str, Any]) -> tuple[list[Task], list[Problem]]:
    """Return the valid tasks, and all problems found."""
    shared = {key: value for key, value in env_kwargs.items() if key != TASKS}
    problems = [
        Problem(("env_kwargs", str(key)), "is no wrapper that all tasks could share; write it into a task")
        for key in shared
        if key not in WRAPPER_KEYS and key not in MODES
    ]
    entries = env_kwargs[TASKS]
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        return [], [*problems, Problem(_PATH, f"must be a list of at least one task, got {entries!r:.200}")]
    tasks: list[Task] = []
    for number, entry in enumerate(entries):
        path = (*_PATH, str(number))
        task, found = _read_task(entry, shared, path)
        if task is not None:
            found += _repetition(task, tasks, path)
            tasks.append(task)
        problems += [problem for problem in found if problem not in problems]  # report a wrong shared key once
    return tasks, problems


def _read_task(entry: Any, shared: Mapping[str, Any], path: KeyPath) -> tuple[Task | None, list[Problem]]:
    if not isinstance(entry, Mapping):
        return None, [Problem(path, f"must be a mapping with the key env_id, got {entry!r:.200}")]
    hints = field_types(TaskKeys)
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, hint in hints.items():
        if key in entry:
            values[key], found = check_value(hint, entry[key], (*path, key))
            problems += found
    if "env_id" not in entry:
        problems.append(Problem((*path, "env_id"), "is required; name the task's environment"))
    own = {key: value for key, value in entry.items() if key not in hints}
    if TASKS in own:
        problems.append(Problem((*path, TASKS), "tasks do not nest; list them all on one level"))
    env_kwargs, found = check_env_kwargs(_merged(shared, own), path)
    problems += [_where_written(problem, own, path) for problem in found]
    keys = None if problems else TaskKeys(**values)
    if keys is None:
        return None, problems
    name = keys.name or keys.env_id
    task = Task(name, keys.env_id, env_kwargs, keys.target_return, keys.random_return)
    if not name.isprintable():
        problems.append(Problem((*path, "name"), f"must be printable text, got {name!r:.200}"))
    target, random = keys.target_return, keys.random_return
    if target is not None and random is not None and random >= target:
        text = f"{random:g} is not below target_return, {target:g}; set it to what random actions earn"
        problems.append(Problem((*path, "random_return"), text))
    return task, problems


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared keys overridden by a task's own, also inside the blocks of single modes."""
    merged = {**shared, **own}
    for mode in MODES:
        if isinstance(shared.get(mode), Mapping):
            kept = {key: value for key, value in shared[mode].items() if key not in own}
            block = own.get(mode, {})
            merged[mode] = {**kept, **block} if isinstance(block, Mapping) else block
    return merged


def _where_written(problem: Problem, own: Mapping[str, Any], path: KeyPath) -> Problem:
    """Return a problem of a task's merged keys with the path of the key where it was written."""
    keys = problem.path[len(path) :]
    block = own.get(keys[0])
    from_shared_block = keys[0] in MODES and len(keys) > 1 and isinstance(block, Mapping) and keys[1] not in block
    if keys[0] in own and not from_shared_block:
        return problem
    return problem._replace(path=(_PATH[0], *keys))


def _repetition(task: Task, earlier: Sequence[Task], path: KeyPath) -> list[Problem]:
    """Return the problem of a task that is listed before, under the same or another name."""
    for other in earlier:
        same = other.env_id == task.env_id and _settings(other) == _settings(task)
        if other.name == task.name:
            if same:
                return [Problem(path, f"the task `{task.name}` is listed twice; remove one of them")]
            return [Problem((*path, "name"), f"`{task.name}` is taken by another task; give each its own name")]
        if same:
            return [Problem(path, f"is the task `{other.name}` again under another name; remove one of them")]
    return []


def _settings(task: Task) -> list[EnvParams]:
    """Return the environment settings of a task, with defaults filled in."""
    return [env_params(task.env_kwargs, mode) for mode in MODES]
