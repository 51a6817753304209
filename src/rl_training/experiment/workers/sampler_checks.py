"""Checks that samplers fit the rest of a configuration."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.configuration.validation import Problem
from rl_training.experiment.own_code.world_names import is_world
from rl_training.experiment.registry import find_algorithm, list_algorithm_specs

_LOOPS = ("on_policy",)


def check_samplers(values: dict[str, Any]) -> list[Problem]:
    """Return the problems of `samplers` and `policy_lag` with other keys."""
    samplers = values.get("samplers")
    if samplers is None:
        if not values.get("policy_lag"):
            return []
        text = "only samplers collect while the run learns; set samplers, or leave this out"
        return [Problem(("policy_lag",), text)]
    problems = []
    spec = find_algorithm(values.get("algo"))
    if spec is not None and spec.loop not in _LOOPS:
        fitting = ", ".join(other.name for other in list_algorithm_specs() if other.loop in _LOOPS)
        text = f"{spec.name} has no use for samplers; leave them out, or choose an algorithm that has ({fitting})"
        problems.append(Problem(("samplers",), text))
    if is_world(values.get("env_id")):
        problems.append(Problem(("samplers",), f"the agents of {values['env_id']} step together; leave samplers out"))
    num_envs = values.get("num_envs", 1)
    if samplers > num_envs:
        text = (
            f"{samplers} samplers need as many environments, and num_envs is {num_envs}; set samplers to at most "
            f"{num_envs}, or raise num_envs"
        )
        problems.append(Problem(("samplers",), text))
    if values.get("execution_backend", "auto") not in ("auto", "local_sync"):
        text = "samplers step their environments one by one; set it to auto, or leave samplers out"
        problems.append(Problem(("execution_backend",), text))
    return problems
