"""Checks that the state in a checkpoint fits its configuration and its components, before anything is built.

A checkpoint may come from somebody else, and its hashes only show that it is complete: sizes must be those of its
tensors, and every value in the state of a component must have the type that the component itself would write.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.data.replay import Replay
from rl_training.errors import AxiomError, CheckpointError
from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.storage.state_files import STATE_FILE, read_state

_NETWORK_SIZES = (
    "hidden_sizes",
    "critic_hidden_sizes",
    "hidden_size",
    "latent_size",
    "support_size",
    "num_atoms",
    "num_quantiles",
    "width",
    "layers",
    "heads",
    "experts",
    "expert_size",
    "adapter_rank",
)
"""Parameters that imply at least as many weights as their value."""


@contextmanager
def checkpoint_fits(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn the errors of loading an unfitting state into a `CheckpointError`."""
    try:
        yield
    except AxiomError:
        raise
    except Exception as error:  # any error that a component raises for an unfitting state
        algo, env_id = checkpoint.manifest.get("algo"), checkpoint.manifest.get("env_id")
        cause = str(error).split("\n")[0][:300] or type(error).__name__
        raise CheckpointError(
            f"checkpoint {checkpoint.path} does not fit algorithm {algo!r} on {env_id!r}: {cause}; "
            "it was written for another algorithm or environment"
        ) from error


def read_checked_state(checkpoint: Checkpoint, config: TrainConfig) -> dict[str, Any]:
    """Return the state of a verified checkpoint after checking its structure and the sizes in its configuration."""
    from rl_training.experiment.storage.schemas import State, mismatch

    state: dict[str, Any] = read_state(checkpoint.path)
    _upgrade(state)
    problem = mismatch(State, state)
    if problem is None and state["session"]["counters"]["step"] > checkpoint.step:
        problem = f"session.counters.step: lies after the checkpoint's step {checkpoint.step}"
    if problem is not None:
        raise CheckpointError(f"checkpoint {checkpoint.path} is damaged: {STATE_FILE} cannot be read ({problem})")
    _check_network_sizes(checkpoint, config, state["algorithm"])
    return state


def _upgrade(state: Any) -> None:
    """Convert a state of an earlier release to the present structure."""
    learner = state.get("algorithm") if isinstance(state, dict) else None
    if isinstance(learner, dict) and "exploration_age" in learner:
        age = learner.pop("exploration_age")
        learner["exploration"] = {"matrices": learner.get("exploration"), "age": age}


def _check_network_sizes(checkpoint: Checkpoint, config: TrainConfig, learner: Mapping[str, Any]) -> None:
    """Raise an error if the configured networks are larger than the weights in the checkpoint."""
    weights = _elements(learner)
    params = algorithm_params(config)
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if field.name not in _NETWORK_SIZES or value is None:
            continue
        sizes = list(value) if isinstance(value, tuple) else [value]
        # Two consecutive layers have a weight for every pair of units.
        products = [one * other for one, other in itertools.pairwise(sizes)]
        if max([*sizes, *products], default=0) > weights:
            raise CheckpointError(
                f"checkpoint {checkpoint.path} is damaged: algo_kwargs.{field.name} in its configuration is {value}, "
                f"and its learner has {weights:,} numbers in all"
            )


def _elements(tree: Any) -> int:
    if isinstance(tree, Mapping):
        return sum(_elements(item) for item in tree.values())
    return tree.numel() if isinstance(tree, torch.Tensor) else 0


def check_num_envs(checkpoint: Checkpoint, config: TrainConfig, collector: Mapping[str, Any]) -> None:
    """Raise an error if the number of environments differs from that of the saved observations."""
    tasks = collector.get("tasks")
    states = list(tasks.values()) if isinstance(tasks, dict) else [collector]
    for state in states:
        observation = state.get("observation") if isinstance(state, dict) else None
        parts = list(observation.values()) if isinstance(observation, dict) else [observation]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if not parts or len(arrays) < len(parts) or any(array.shape[:1] != (config.num_envs,) for array in arrays):
            raise CheckpointError(
                f"checkpoint {checkpoint.path} is damaged: num_envs in its configuration is {config.num_envs}, and its "
                "state does not hold an observation of each"
            )


def check_form(expected: Any, found: Any, place: str) -> None:
    """Raise an error if a value differs in type from the component's own: text for a number, another shape.

    Missing and additional entries are left to `load_state_dict`; None stands for a missing entry.
    """
    if expected is None or found is None:
        return
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            raise ValueError(f"{place} is not a mapping")
        for key in expected.keys() & found.keys():
            check_form(expected[key], found[key], f"{place}.{key}")
    elif isinstance(expected, torch.Tensor | np.ndarray):
        kind = torch.Tensor if isinstance(expected, torch.Tensor) else np.ndarray
        if not isinstance(found, kind) or found.shape != expected.shape or found.dtype != expected.dtype:
            raise ValueError(f"{place} is not an array of shape {tuple(expected.shape)} and type {expected.dtype}")
    elif isinstance(expected, bool | int | float | str):
        kinds = (int, float) if isinstance(expected, float) else type(expected)
        if not isinstance(found, kinds) or (isinstance(found, bool) and not isinstance(expected, bool)):
            raise ValueError(f"{place} is not of the type {type(expected).__name__}")
    elif isinstance(expected, list | tuple) and not isinstance(found, list):
        raise ValueError(f"{place} is not a list")


def check_collector_form(expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Check a collector's state except for parts that change in size; an environment checks most of its own state."""
    if "tasks" in expected:
        for name, task in expected["tasks"].items():
            check_collector_form(task, found["tasks"][name])
        return
    check_form(_without_growing(expected), _without_growing(found), "collector")
    _check_axes(expected["env"], found["env"], "collector.env")


def _check_axes(expected: Any, found: Any, place: str) -> None:
    """Raise an error if an environment's array has another number of axes; its sizes may change over time."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in expected.keys() & found.keys():
            _check_axes(expected[key], found[key], f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(found, list):
        for number, (one, other) in enumerate(zip(expected, found, strict=False)):
            _check_axes(one, other, f"{place}.{number}")
    elif isinstance(expected, np.ndarray) and isinstance(found, np.ndarray) and expected.ndim != found.ndim:
        raise ValueError(f"{place} is an array of {found.ndim} axes instead of {expected.ndim}")


def _without_growing(collector: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in collector.items() if key not in ("env", "rollout")}
    if isinstance(known.get("replay"), dict):
        sampler = known["replay"].get("sampler")
        kept = {key: value for key, value in sampler.items() if key != "priorities"} if isinstance(sampler, dict) else 0
        known["replay"] = {**known["replay"], "sampler": kept}
    return known


def check_replay_counts(collector: Mapping[str, Any], segments: Sequence[Mapping[str, Any]], first: int = 0) -> None:
    """Raise an error if a replay's counts differ from the rows in its segments; replays are numbered from `first`."""
    states = [task["replay"] for task in collector["tasks"].values()] if "tasks" in collector else [collector["replay"]]
    for number, state in enumerate(states, start=first):
        own = [entry for entry in segments if entry.get("replay", 0) == number]
        for key, count in (("transitions", state["count"]), ("observations", state["observation_count"])):
            if count != max((entry[key][1] for entry in own), default=0):
                raise ValueError(f"the replay counts {count} {key}, its segments do not")


def check_actions(replay: Replay, space: gym.Space[Any]) -> None:
    """Raise an error if a restored replay contains actions outside of a discrete space.

    Compiled code relies on this: it does not check indices.
    """
    if isinstance(space, gym.spaces.Discrete):
        for actions in (replay.columns["action"], replay.accumulator.state_dict()["action"]):
            if actions is not None and actions.size and not 0 <= actions.min() <= actions.max() < space.n:
                raise ValueError(f"the replay holds an action that is none of {space.n}")


def check_stored_actions(actions: np.ndarray, num_envs: int, space: gym.Space[Any]) -> None:
    """Raise an error if the actions [steps, num_envs, ...] of a restored rollout are none of the space's.

    Compiled code relies on this: it does not check indices.
    """
    if actions.ndim < 2 or actions.shape[1] != num_envs:
        raise ValueError(f"the rollout's actions are not those of {num_envs} environments")
    limits: Any = None
    if isinstance(space, gym.spaces.Discrete):
        limits = int(space.n)
    elif isinstance(space, gym.spaces.MultiDiscrete):
        limits = space.nvec.reshape(-1)
    if limits is not None and actions.size and not ((actions >= 0) & (actions < limits)).all():
        raise ValueError("the rollout contains an action outside of the space")
