"""Checks that samplers fit the rest of a configuration."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.algorithm_spec import AlgorithmSpec
from rl_training.experiment.configuration.validation import Problem
from rl_training.experiment.own_code.world_names import is_world
from rl_training.experiment.registry import find_algorithm, list_algorithm_specs

_LOOPS = ("on_policy", "off_policy", "planning")


def check_samplers(values: dict[str, Any]) -> list[Problem]:
    """Return the problems of `samplers` and the keys about them with other keys."""
    samplers = values.get("samplers")
    problems = _without_samplers(values) if samplers is None else []
    if values.get("ray_address") is not None and values.get("sampler_backend") != "ray":
        text = "is read by sampler_backend ray only; set sampler_backend to ray, or leave the address out"
        problems.append(Problem(("ray_address",), text))
    if samplers is None:
        return problems
    spec = find_algorithm(values.get("algo"))
    if spec is not None and not _fits(spec):
        fitting = ", ".join(other.name for other in list_algorithm_specs() if _fits(other))
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


def _fits(spec: AlgorithmSpec) -> bool:
    """Return whether samplers can act for an algorithm: one that searches for all tasks together cannot be split."""
    return spec.loop in _LOOPS and not spec.many_tasks


def _without_samplers(values: dict[str, Any]) -> list[Problem]:
    """Return the keys that only samplers read."""
    problems = []
    if values.get("policy_lag"):
        text = "only samplers collect while the run learns; set samplers, or leave this out"
        problems.append(Problem(("policy_lag",), text))
    if values.get("sampler_backend", "process") != "process":
        text = "there are no samplers; set samplers to their number, or leave this out"
        problems.append(Problem(("sampler_backend",), text))
    return problems
