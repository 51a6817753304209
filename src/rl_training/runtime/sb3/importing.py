"""Makes a run of this package from a model that Stable-Baselines3 saved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.envs.spaces import observation_kind
from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.off_policy import begin_off_policy
from rl_training.runtime.on_policy import begin_on_policy
from rl_training.runtime.sb3.model_zip import ModelError, SavedModel, read_model
from rl_training.runtime.sb3.settings import import_settings
from rl_training.runtime.sb3.weights import IMPORTED, ImportedWeights, import_weights
from rl_training.runtime.session import TrainingSession, TrainResult
from rl_training.runtime.setup.task_setup import TaskSetup

logger = logging.getLogger("rl_training")

_BEGIN: dict[str, Callable[[TrainingSession], Any]] = {"on_policy": begin_on_policy, "off_policy": begin_off_policy}
NO_STATISTICS = (
    "VecNormalize keeps its statistics in a file of its own, which is not read: a model that was trained with it needs "
    "the same scaling of observations"
)


def import_model(
    path: str | Path,
    *,
    algo: str,
    env_id: str,
    overrides: Mapping[str, Any] | None = None,
    set_values: Sequence[str] = (),
) -> TrainResult:
    """Make a run whose first checkpoint has a model's weights and settings; it has not been trained here yet.

    `overrides` (values by dotted key) and `set_values` (texts `key=value`) change the configuration.
    """
    if algo not in IMPORTED:
        raise ConfigError(
            f"--algo: models of {algo!r} are not imported, those of {', '.join(IMPORTED)} are"
            f"{did_you_mean(algo, IMPORTED)}"
        )
    model = read_model(Path(path))
    weights = import_weights(algo, model)
    config, notices = _configuration(algo, env_id, model, weights, overrides or {}, set_values)
    start = _Start(model, weights)
    with TrainingSession(config, weights=start) as session:
        for task in session.setup.tasks:
            if observation_kind(task.observation_space) != "vector":
                raise ModelError(
                    f"{model.path}: an MLP policy reads vectors, and the observations of {env_id} are of another kind, "
                    f"{task.observation_space!s:.100}"
                )
        _BEGIN[get_algorithm_spec(algo).loop](session)
        for notice in notices:
            session.notify(notice)
        return session.result()


class _Start:
    """The weights that a run starts with."""

    def __init__(self, model: SavedModel, weights: ImportedWeights) -> None:
        self.model = model
        self.weights = weights

    def apply(self, algorithm: Algorithm, tasks: Sequence[TaskSetup]) -> None:
        """Load the weights into an algorithm, after a comparison of their shapes."""
        fresh = algorithm.state_dict()
        for part, tensors in self.weights.state.items():
            wanted = {name: tuple(tensor.shape) for name, tensor in fresh[part].items() if hasattr(tensor, "shape")}
            for name in sorted({*wanted, *tensors}):
                found = tuple(tensors[name].shape) if name in tensors else None
                if found != wanted.get(name):
                    raise ModelError(
                        f"{self.model.path} does not fit: `{part}.{name}` has the shape {found} in the model and "
                        f"{wanted.get(name)} in {tasks[0].task.env_id}; name the environment that it was trained in by "
                        "--env"
                    )
        algorithm.load_weights(self.weights.state)
        logger.info("starting with the weights of %s", self.model.path)

    def lineage(self) -> dict[str, Any] | None:
        """Return the metadata entry about the parent run: there is none."""
        return None


def _configuration(
    algo: str,
    env_id: str,
    model: SavedModel,
    weights: ImportedWeights,
    overrides: Mapping[str, Any],
    set_values: Sequence[str],
) -> tuple[TrainConfig, list[str]]:
    """Return the configuration of the run, and what the user should know."""
    settings, unread = import_settings(algo, model)
    settings |= weights.settings
    base: dict[str, Any] = {"algo": algo, "env_id": env_id, "algo_kwargs": settings}
    for key, theirs in (("num_envs", "n_envs"), ("total_timesteps", "_total_timesteps"), ("seed", "seed")):
        value = model.data.get(theirs)
        if type(value) is int and value > 0:
            base[key] = value
    config = load_config(base=base, overrides=overrides, set_values=set_values)
    trained = model.data.get("num_timesteps")
    notices = [
        f"imported from {model.path.name} (sha256 {model.sha256[:16]}), a model of Stable-Baselines3 {model.version} "
        f"after {trained if type(trained) is int else 'unknown'} steps; optimizers and replay start anew",
        NO_STATISTICS,
    ]
    if unread:
        notices.append(
            f"not read, since that needs unpickling: {', '.join(unread)}; these keep their defaults here, and --set "
            "changes them"
        )
    return config, notices
