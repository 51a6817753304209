"""Checks that several learners fit the rest of a configuration."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.configuration.validation import Problem
from rl_training.experiment.own_code.world_names import is_world
from rl_training.experiment.registry import find_algorithm, list_algorithm_specs

LOOPS = ("on_policy", "off_policy")
SHARED = ("minibatch_size", "batch_size")
"""Parameters that count the transitions of all learners together, who have equal shares."""


def check_devices(values: dict[str, Any]) -> list[Problem]:
    """Return the problems of `devices` with other keys."""
    devices = values.get("devices")
    if devices is None or devices == 1:
        return []
    return [*_unsupported(values), *_unequal_shares(values, devices)]


def _unsupported(values: dict[str, Any]) -> list[Problem]:
    """Return the problems of settings that only one learner can have."""
    problems = []
    spec = find_algorithm(values.get("algo"))
    if spec is not None and spec.loop not in LOOPS:
        fitting = ", ".join(other.name for other in list_algorithm_specs() if other.loop in LOOPS)
        text = f"{spec.name} learns on one device; leave devices out, or choose an algorithm that shares ({fitting})"
        problems.append(Problem(("devices",), text))
    if values.get("samplers") is not None:
        text = "every device collects in its own share of the environments; leave samplers out, or devices"
        problems.append(Problem(("samplers",), text))
    if is_world(values.get("env_id")):
        problems.append(Problem(("devices",), f"the agents of {values['env_id']} step together; leave devices out"))
    device = values.get("device", "auto")
    if device not in ("auto", "cpu", "cuda"):
        text = f"{device} is a single device; set it to auto, cpu or cuda, or leave devices out"
        problems.append(Problem(("device",), text))
    params = values.get("algo_kwargs", {})
    if spec is not None and spec.loop == "on_policy" and params.get("recurrent") is not None:
        text = "sequences cannot be shared equally by several devices; leave it out, or devices"
        problems.append(Problem(("algo_kwargs", "recurrent"), text))
    if params.get("batch_norm"):
        text = "the statistics of a batch are not shared by several devices; set it to false, or leave devices out"
        problems.append(Problem(("algo_kwargs", "batch_norm"), text))
    if params.get("dataset_fraction"):
        text = "a dataset is mixed into the batches of one device only; set it to 0, or leave devices out"
        problems.append(Problem(("algo_kwargs", "dataset_fraction"), text))
    return problems


def _unequal_shares(values: dict[str, Any], devices: int) -> list[Problem]:
    """Return the problems of numbers that cannot be divided by the number of devices."""
    counts: dict[tuple[str, ...], Any] = {("num_envs",): values.get("num_envs", 1)}
    counts |= {("algo_kwargs", name): values.get("algo_kwargs", {}).get(name) for name in SHARED}
    return [
        Problem(
            path,
            f"{number} cannot be shared equally by {devices} devices; set it to a multiple of {devices}, such as "
            f"{-(-number // devices) * devices}, or change devices",
        )
        for path, number in counts.items()
        if isinstance(number, int) and number % devices
    ]
