"""One task of a run: its checked spaces, its training environments and their normalisers."""

from __future__ import annotations

import logging
from typing import Any

from gymnasium import Space, spaces

from rl_training.envs.make import inspect_environment, make_factory, make_vector_env
from rl_training.envs.normalize import Normalizers, make_normalizers, normalizers_of, with_normalization
from rl_training.envs.spaces import image_layout, image_read_as_vector, observation_kind
from rl_training.envs.vector import VectorEnv
from rl_training.envs.workers.backend_choice import resolve_backend
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.configuration.validation import field_types
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.experiment.tasks import Task, TaskKeys, is_suite
from rl_training.models.encoders import LARGE_IMAGE
from rl_training.runtime.samplers.environments import SampledEnvironments
from rl_training.runtime.setup.size_limits import check_observation_size

logger = logging.getLogger("rl_training")


class TaskSetup:
    """A task that the algorithm can learn, and its training environments once they are made."""

    def __init__(self, task: Task, config: TrainConfig, params: Any) -> None:
        """Raise an error if the algorithm cannot learn the task."""
        self.task = task
        self.config = config
        check_observation_size(task)
        training, evaluation = inspect_environment(task.env_id, task.env_kwargs)
        self.observation_space, self.action_space = training.observation_space, training.action_space
        self.env: VectorEnv | None = None
        self.sampled: SampledEnvironments | None = None  # those of samplers instead
        self.notices = [
            f"{task.env_id}: the observation's entry `{key}` is a text, which no network here reads; it is left out"
            for key in training.ignored
        ]
        """Messages to the user that the run's metadata records too."""
        self._check_spaces()
        self._check_turns(getattr(params, "two_player", None), training.turn_taking, evaluation.turn_taking)

    @property
    def described(self) -> str:
        """What has the task's spaces, for messages about them."""
        return self.task.env_id

    @property
    def backend(self) -> tuple[str, str]:
        """The backend of the training environments, and the reason for it."""
        config, task = self.config, self.task
        if config.samplers is not None:
            return "local_sync", "each sampler steps its environments one after the other"
        return resolve_backend(task.env_id, task.env_kwargs, config.execution_backend, config.num_envs)

    def _check_spaces(self) -> None:
        spec = get_algorithm_spec(self.config.algo)
        kind, action = observation_kind(self.observation_space), type(self.action_space).__name__
        if kind not in spec.observation_spaces:
            raise ConfigError(
                f"{spec.name} does not learn from the {kind} observations of {self.described}; "
                f"it takes {', '.join(spec.observation_spaces)}"
            )
        if action not in spec.action_spaces:
            fitting = [
                other.name
                for other in list_algorithm_specs()
                if action in other.action_spaces and (other.loop == "offline") == (spec.loop == "offline")
            ]
            source = "dataset" if spec.loop == "offline" else "environment"
            raise ConfigError(
                f"{spec.name} does not support the {action} actions of {self.described}; it takes "
                f"{', '.join(spec.action_spaces)}: choose another {source}, or an algorithm that fits "
                f"({', '.join(fitting) or 'there is none yet'})"
            )

    def _check_turns(self, two_player: bool | None, training: bool, evaluation: bool) -> None:
        """Raise an error if `two_player` does not match the environment: values would have the wrong sign."""
        env_id = self.task.env_id
        if training and two_player is None:
            raise ConfigError(
                f"{self.config.algo} learns for one player, and two take turns in {env_id}; let an opponent answer "
                "(env_kwargs.opponent in board games), or choose muzero or gumbel_muzero with two_player: true"
            )
        if training and not two_player:
            raise ConfigError(f"algo_kwargs.two_player: two players take turns in {env_id}; set it to true")
        if two_player and not training:
            raise ConfigError(
                f"algo_kwargs.two_player: a single player acts in {env_id}; set it to false, or choose an environment "
                "for self-play"
            )
        if evaluation and self.config.eval_episodes > 0:
            raise ConfigError(
                f"env_kwargs.evaluation: {env_id} would be evaluated by self-play, where a win is also a loss; name an "
                "opponent (env_kwargs.evaluation.opponent in board games) or set eval_episodes to 0"
            )

    @property
    def has_large_images(self) -> bool:
        """Whether an observation is large enough to use several threads."""
        space = self.observation_space
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
        images = [image_layout(part.shape or ()) for part in parts if observation_kind(part) == "image"]
        return any(min(image.height, image.width) >= LARGE_IMAGE for image in images)

    def make_env(self, *, gamma: float, raw: bool = False) -> VectorEnv:
        """Make the training environments, normalised as configured.

        With `raw` they return unscaled data, for a replay that scales what it samples.
        """
        config, task = self.config, self.task
        backend = self._log_backend()
        env = make_vector_env(task.env_id, task.env_kwargs, mode="training", num_envs=config.num_envs, backend=backend)
        self.env = with_normalization(env, env_params(task.env_kwargs, "training"), gamma=gamma, raw=raw)
        return self.env

    def make_sampled_environments(self, *, gamma: float) -> SampledEnvironments:
        """Return the training environments, for samplers to make, and their normalisers."""
        config, task = self.config, self.task
        self._log_backend()
        params, space = env_params(task.env_kwargs, "training"), self.observation_space
        self.sampled = SampledEnvironments(
            factory=make_factory(task.env_id, task.env_kwargs, mode="training"),
            num_envs=config.num_envs,
            observation_space=space,
            action_space=self.action_space,
            normalizers=make_normalizers(space, config.num_envs, params, gamma=gamma),
            timeout=params.worker_timeout,
        )
        return self.sampled

    def _log_backend(self) -> str:
        """Log which backend runs the environments, and why; return its name."""
        backend, reason = self.backend
        logger.info("%d x %s on backend %s: %s", self.config.num_envs, self.task.env_id, backend, reason)
        oddity = image_read_as_vector(self.observation_space)
        if oddity is not None:
            logger.warning("%s: %s", self.task.env_id, oddity)
        return backend

    @property
    def normalizers(self) -> Normalizers:
        """The normalisers of the training environments."""
        return normalizers_of(self.sampled or self.env)

    @property
    def seen_space(self) -> Space[Any]:
        """The observation space of the algorithm, after normalisation if it is configured."""
        env, observation = self.sampled or self.env, self.normalizers.observation
        assert env is not None
        return env.observation_space if observation is None else observation.normalized_space

    @property
    def taken_space(self) -> Space[Any]:
        """The action space of the algorithm."""
        return self.action_space if self.env is None else self.env.action_space

    def close(self) -> None:
        """Close the training environments."""
        for environments in (self.env, self.sampled):
            if environments is not None:
                environments.close()

    def normalizer_state_dict(self) -> dict[str, Any] | None:
        """Return the state of the normalisers, None if nothing is normalised."""
        return self.normalizers.state_dict() if self.normalizers else None

    def load_normalizer_state_dict(self, state: Any) -> None:
        """Restore the state of the normalisers."""
        if self.normalizers:
            self.normalizers.load_state_dict(state)


def set_up_tasks(tasks: tuple[Task, ...], config: TrainConfig, params: Any) -> list[TaskSetup]:
    """Return all tasks set up; error messages about a task of a suite name its place in the list."""
    found = []
    for number, task in enumerate(tasks):
        try:
            found.append(TaskSetup(task, config, params))
        except ConfigError as error:
            if not is_suite(config):
                raise
            place = f"env_kwargs.tasks.{number}"
            own = "; a task's own keys are " + ", ".join(field_types(TaskKeys))
            raise ConfigError(
                [f"{place}: {problem}{own if 'no such argument' in problem else ''}" for problem in error.problems]
            ) from error
    return found
