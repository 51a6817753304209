"""What is prepared and checked before a run directory exists, so that a user's mistake leaves nothing behind."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Any

import torch
from gymnasium import spaces

from rl_training.data.hindsight import GoalTask
from rl_training.envs.make import inspect_environment, make_slots, make_vector_env, resolve_backend
from rl_training.envs.normalize import NormalizedVectorEnv, ObservationNormalizer, with_normalization
from rl_training.envs.spaces import image_layout, observation_kind, space_to_json
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig, algorithm_params, check_config, tracking_params
from rl_training.experiment.env_params import env_params
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.models.encoders import LARGE_IMAGE
from rl_training.runtime.run_utils import resolve_device
from rl_training.runtime.torch_setup import TorchSetup, choose_threads

logger = logging.getLogger("rl_training")


class RunSetup:
    """A checked configuration with its device, spaces, torch settings and training environments."""

    def __init__(self, config: TrainConfig, resume_point: ResumePoint | None) -> None:
        self.config = check_config(config)
        self.resume_point = resume_point
        self.params = algorithm_params(self.config)
        if tracking_params(self.config).wandb is not None and find_spec("wandb") is None:
            raise MissingExtraError("tracking.wandb", "wandb")
        self.device: torch.device = resolve_device(self.config.device)
        training, evaluation = inspect_environment(self.config.env_id, self.config.env_kwargs)
        self.observation_space, self.action_space = training.observation_space, training.action_space
        self._check_spaces()
        self._check_turns(training.turn_taking, evaluation.turn_taking)
        self._env: VectorEnv | None = None
        threads = choose_threads(
            self.config, large_images=self._has_large_images(), hidden_sizes=getattr(self.params, "hidden_sizes", None)
        )
        if resume_point is not None and self.config.torch_threads is None:
            # Another number of threads would round differently: keep the run's own.
            threads = resume_point.checkpoint.manifest.get("torch_threads", threads)
        self.torch = TorchSetup(threads=threads, deterministic=self.config.deterministic, device=self.device)

    def _check_spaces(self) -> None:
        spec = get_algorithm_spec(self.config.algo)
        kind, action = observation_kind(self.observation_space), type(self.action_space).__name__
        if kind not in spec.observation_spaces:
            raise ConfigError(
                f"{spec.name} does not learn from the {kind} observations of {self.config.env_id}; "
                f"it takes {', '.join(spec.observation_spaces)}"
            )
        if action not in spec.action_spaces:
            fitting = [other.name for other in list_algorithm_specs() if action in other.action_spaces]
            raise ConfigError(
                f"{spec.name} does not support the {action} actions of {self.config.env_id}; it takes "
                f"{', '.join(spec.action_spaces)}: choose another environment, or an algorithm that fits "
                f"({', '.join(fitting) or 'there is none yet'})"
            )

    def _check_turns(self, training: bool, evaluation: bool) -> None:
        """Refuse to learn for one player where two take turns, and the reverse: values would have the wrong sign."""
        env_id, two_player = self.config.env_id, getattr(self.params, "two_player", None)
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

    def _has_large_images(self) -> bool:
        space = self.observation_space
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
        images = [image_layout(part.shape or ()) for part in parts if observation_kind(part) == "image"]
        return any(min(image.height, image.width) >= LARGE_IMAGE for image in images)

    def make_env(self, *, gamma: float) -> VectorEnv:
        """Return the training environments, normalised as the configuration asks."""
        config = self.config
        backend, reason = resolve_backend(config.env_id, config.env_kwargs, config.execution_backend, config.num_envs)
        logger.info("%d x %s on backend %s: %s", config.num_envs, config.env_id, backend, reason)
        env = make_vector_env(
            config.env_id, config.env_kwargs, mode="training", num_envs=config.num_envs, backend=backend
        )
        self._env = with_normalization(env, env_params(config, "training"), gamma=gamma)
        return self._env

    def make_algorithm(self, env: VectorEnv, generator: torch.Generator) -> Any:
        """Return the algorithm with initial weights, for what the environments show and take."""
        return get_algorithm_spec(self.config.algo).load_algorithm()(
            self.params, env.observation_space, env.action_space, device=self.device, generator=generator
        )

    def goal_task(self) -> GoalTask:
        """Return what reaching a goal is worth in a goal-conditioned environment."""
        if env_params(self.config, "training").normalize_observation:
            raise ConfigError(
                "env_kwargs.normalize_observation: hindsight needs the goals as they are; set it to false"
            )
        (slot,) = make_slots(self.config.env_id, self.config.env_kwargs, mode="training", count=1)
        if not slot.env.has_wrapper_attr("compute_reward"):
            raise ConfigError(
                f"algo_kwargs.hindsight: {self.config.env_id} has no compute_reward(achieved, desired, info); "
                "set hindsight to none or choose a goal-conditioned environment"
            )
        reward = slot.env.get_wrapper_attr("compute_reward")
        terminated = None
        if slot.env.has_wrapper_attr("compute_terminated"):
            terminated = slot.env.get_wrapper_attr("compute_terminated")
        return GoalTask(
            reward=lambda achieved, desired: reward(achieved, desired, {}),
            terminated=None if terminated is None else lambda achieved, desired: terminated(achieved, desired, {}),
        )

    @property
    def observation_normalizer(self) -> ObservationNormalizer | None:
        """What the training environments do to observations, None where they are left as they are."""
        return self._env.observation_normalizer if isinstance(self._env, NormalizedVectorEnv) else None

    def normalizer_state_dict(self) -> dict[str, Any] | None:
        """Return the state of the normalisers, None where nothing is normalised."""
        return self._env.normalizer_state_dict() if isinstance(self._env, NormalizedVectorEnv) else None

    def load_normalizer_state_dict(self, state: Any) -> None:
        """Put the state of the normalisers back."""
        if isinstance(self._env, NormalizedVectorEnv):
            self._env.load_normalizer_state_dict(state)

    def spaces_as_json(self) -> dict[str, Any]:
        """Return the spaces for a checkpoint's manifest."""
        return {
            "observation": space_to_json(self.observation_space),
            "action": space_to_json(self.action_space),
        }

    def close(self) -> None:
        """Close the environments and put torch's settings back."""
        self.torch.restore()
        if self._env is not None:
            self._env.close()
