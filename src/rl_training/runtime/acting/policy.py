"""A trained policy: networks, the frozen observation normaliser, and the conversion to the environment's actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.algorithms.base import ActingAlgorithm, PlanningAlgorithm
from rl_training.data.observations import NumpyObservation, Observation, to_tensor
from rl_training.envs.arrays import as_batch, as_mask, as_memory
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import joined_spaces, mask_width, space_from_json
from rl_training.errors import AxiomError
from rl_training.experiment.checkpoints import Checkpoint, resolve_checkpoint, verify_checkpoint
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.own_code.run_code import (
    admit_policy_code,
    checkpoint_config,
    loaded_from,
    warn_of_changed_code,
)
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.tasks import Task, choose_task, tasks_of
from rl_training.runtime.controls import resolve_num_simulations
from rl_training.runtime.run_utils import resolve_device
from rl_training.runtime.setup.acceleration import accelerate
from rl_training.runtime.setup.restored_state import check_form, checkpoint_fits, read_checked_state
from rl_training.runtime.setup.size_limits import check_policy_size
from rl_training.runtime.setup.user_networks import encoder_argument


class Actor(Protocol):
    """The methods that a policy needs from an algorithm."""

    device: torch.device

    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the best actions, or sampled ones if a generator is given.

        Algorithms that plan also accept `num_simulations`: with it they search, without it they use their policy
        network.
        """

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions in the format of the environment's action space."""


class Policy:
    """Acts on raw observations of the environment; needs no environment."""

    def __init__(
        self,
        actor: Actor,
        observation_space: Space[Any],
        action_space: Space[Any],
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        self.actor = actor
        self.observation_space = observation_space
        self.action_space = action_space
        self.normalizer = normalizer
        self.num_simulations: int | None = None
        """Number of simulations of a planning policy in evaluations."""

    @property
    def memory_size(self) -> int:
        """Numbers that the policy remembers from step to step of an episode; 0: nothing."""
        return getattr(self.actor, "memory_size", 0)

    @property
    def plans(self) -> bool:
        """Whether the policy can search before it acts."""
        return getattr(self.actor, "plans", False)

    def actions(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None = None,
        generator: torch.Generator | None = None,
        num_simulations: int | None = None,
    ) -> np.ndarray:
        """Return actions [B, ...] for raw observations [B, ...], sampled if a generator is given.

        A planning policy searches with `num_simulations` if given.
        """
        if self.memory_size:
            raise AxiomError(
                "this policy remembers earlier steps of an episode, which cannot be given here; use one without "
                "algo_kwargs.recurrent"
            )
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        device = self.actor.device
        action_mask = None if mask is None else torch.as_tensor(mask, dtype=torch.bool, device=device)
        planning = {} if num_simulations is None else {"num_simulations": num_simulations}
        action = self.actor.choose(to_tensor(observation, device), action_mask, generator, **planning)
        return self.actor.env_action(action)

    def act(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None,
        generator: torch.Generator | None,
        memory: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the next actions [B, ...] of episodes, and what the policy remembers after them.

        `memory` [B, memory size] is what it remembers of the episodes so far, zero at their start; None if it has none.
        """
        if not self.memory_size:
            return self.actions(observation, mask, generator, self.num_simulations), None
        assert memory is not None
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        device = self.actor.device
        action_mask = None if mask is None else torch.as_tensor(mask, dtype=torch.bool, device=device)
        remembered = torch.as_tensor(memory, dtype=torch.float32, device=device)
        actor: Any = self.actor
        action, after = actor.choose_with_memory(to_tensor(observation, device), action_mask, generator, remembered)
        return self.actor.env_action(action), after.cpu().numpy()

    def log_probs(
        self,
        observation: NumpyObservation,
        action: np.ndarray,
        mask: np.ndarray | None = None,
        memory: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Return the log-probabilities [B] with which actions [B, ...] are sampled for raw observations [B, ...].

        Actions are in the environment's format, and `memory` [B, memory size] is what the policy remembers, if it does.
        None if it does not know them, for example if it plans.
        """
        suffix = "_with_memory" if self.memory_size else ""
        if not isinstance(self.actor, ActingAlgorithm) or not _knows_its_probabilities(type(self.actor), suffix):
            return None
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        device = self.actor.device
        action_mask = None if mask is None else torch.as_tensor(mask, dtype=torch.bool, device=device)
        remembered = () if memory is None else (torch.as_tensor(memory, dtype=torch.float32, device=device),)
        known: Any = getattr(self.actor, f"env_log_prob{suffix}")
        log_prob = known(to_tensor(observation, device), action_mask, action, *remembered)
        return None if log_prob is None else log_prob.cpu().numpy()

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        *,
        action_mask: Any = None,
        deterministic: bool = True,
        seed: int | None = None,
        num_simulations: int | None = None,
    ) -> Any:
        """Return the action for one observation, or the actions for a batch of observations.

        With `deterministic=False` actions are sampled; equal seeds then give equal actions. A planning policy searches
        with `num_simulations` simulations if given, else it uses its policy network.

        A policy with a memory returns the action and its new state, which the next call takes as `state`; None, and
        `episode_start` true for an episode, start anew.
        """
        if num_simulations is not None:
            self._check_simulations(num_simulations)
        batch, single = self._as_batch(observation)
        mask = None
        if action_mask is not None:
            rows = len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
            mask = as_mask(action_mask, mask_width(self.action_space), rows, single=single)
        generator = None
        if not deterministic:
            generator = torch.Generator(self.actor.device)
            if seed is None:
                generator.seed()
            else:
                generator.manual_seed(seed)
        if not self.memory_size:
            if state is not None or episode_start is not None:
                raise AxiomError("this policy has no memory; leave state and episode_start out")
            actions = self.actions(batch, mask, generator, num_simulations)
            return actions[0] if single else actions
        rows = len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
        memory, starts = as_memory(state, episode_start, self.memory_size, rows, single=single)
        actions, after = self.act(batch, mask, generator, np.where(starts[:, None], np.float32(0.0), memory))
        assert after is not None
        return (actions[0], after[0]) if single else (actions, after)

    def _check_simulations(self, num_simulations: int) -> None:
        if not self.plans:
            raise AxiomError("this policy has no model to plan with; leave num_simulations out")
        if isinstance(num_simulations, bool) or not isinstance(num_simulations, int) or num_simulations < 1:
            raise AxiomError(f"num_simulations must be an integer of at least 1, not {num_simulations!r}")

    def _as_batch(self, observation: Any) -> tuple[NumpyObservation, bool]:
        """Return the observation as a batch, and whether it was a single one."""
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            if not isinstance(observation, dict) or set(observation) != set(space.keys()):
                raise AxiomError(f"the policy expects a dict with the keys {', '.join(space.keys())}")
            parts = {key: _batch(observation[key], sub_space, f" `{key}`") for key, sub_space in space.items()}
            batch = {key: array for key, (array, _) in parts.items()}
            if len({(len(array), single) for array, single in parts.values()}) > 1:
                raise AxiomError("the observation's entries are not as many each: give one observation, or one batch")
            return batch, next(single for _, single in parts.values())
        return _batch(observation, space, "")


def _knows_its_probabilities(algorithm: type[ActingAlgorithm], suffix: str) -> bool:
    """Return whether `env_log_prob` is about the `choose` that an algorithm has, which a subclass may replace."""
    names = (f"choose{suffix}", f"env_log_prob{suffix}")
    chooser, knower = (next((one for one in algorithm.__mro__ if name in vars(one)), object) for name in names)
    return issubclass(knower, chooser)


def _batch(observation: Any, space: Space[Any], name: str) -> tuple[np.ndarray, bool]:
    batch, single = as_batch(observation, space.shape or (), np.dtype(space.dtype), name)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and not all(map(space.contains, batch)):
        raise AxiomError(f"the observation{name} holds a number beyond what the policy knows, {space}")
    return batch, single


def load_policy(path: str | Path, *, task: str | None = None, device: str = "cpu", trust_code: bool = False) -> Policy:
    """Return the policy in a checkpoint, a run directory or `.../checkpoints/best`, ready to `predict`.

    A policy for several tasks acts in the one called `task`. `trust_code` permits the execution of other people's code
    that the checkpoint names.
    """
    checkpoint = verify_checkpoint(resolve_checkpoint(Path(path)))
    config = checkpoint_config(checkpoint, trust_code=trust_code)
    policies = policies_from_checkpoint(checkpoint, config, device=device, trust_code=trust_code)
    warn_of_changed_code(config, checkpoint)
    return policies[choose_task(list(policies), task)]


def policies_from_checkpoint(
    checkpoint: Checkpoint, config: TrainConfig, *, device: str, trust_code: bool = False
) -> dict[Task, Policy]:
    """Make the policy of a verified checkpoint, with the configuration `config`, for each of its tasks."""
    admit_policy_code(config, loaded_from(checkpoint, trust_code=trust_code))
    spec = get_algorithm_spec(config.algo)
    state = read_checked_state(checkpoint, config)
    target = resolve_device(device)
    tasks = tasks_of(config)
    with checkpoint_fits(checkpoint):
        shown = space_from_json(checkpoint.manifest["spaces"]["observation"])
        taken = space_from_json(checkpoint.manifest["spaces"]["action"])
        seen = {task: _by_task(shown, task, many=spec.many_tasks) for task in tasks}
        normalizers = {
            task: _frozen_normalizer(task, seen[task], _by_task(state["normalizers"], task, many=spec.many_tasks))
            for task in tasks
        }
        normalized = {
            task.name: seen[task] if normalizer is None else normalizer.normalized_space
            for task, normalizer in normalizers.items()
        }
        params = algorithm_params(config)
        check_policy_size(params, [(seen[task], _by_task(taken, task, many=spec.many_tasks)) for task in tasks])
        algorithm = spec.algorithm_class(params)(
            params,
            joined_spaces(normalized) if spec.many_tasks else normalized[tasks[0].name],
            taken,
            device=target,
            generator=torch.Generator(),  # the initial weights are replaced immediately
            **encoder_argument(params),
        )
        check_form(algorithm.state_dict(), state["algorithm"], "algorithm")
        algorithm.load_state_dict(state["algorithm"])
    if isinstance(algorithm, PlanningAlgorithm):  # whose policy is a search; of the others kernels serve learning
        accelerate(algorithm, config.acceleration)
    policies = {
        task: Policy(
            algorithm.actor(task.name) if spec.many_tasks else algorithm,
            seen[task],
            _by_task(taken, task, many=spec.many_tasks),
            normalizers[task],
        )
        for task in tasks
    }
    for policy in policies.values():
        if policy.plans:
            policy.num_simulations = resolve_num_simulations(config, step=checkpoint.step, default=1)
    return policies


def _by_task(joined: Any, task: Task, *, many: bool) -> Any:
    """Return a task's entry if the algorithm has many tasks, else the value itself."""
    return joined[task.name] if many else joined


def _frozen_normalizer(task: Task, space: Space[Any], state: Any) -> ObservationNormalizer | None:
    if state is None or state["observation"] is None:
        return None
    normalizer = ObservationNormalizer(space, env_params(task.env_kwargs, "evaluation").clip_observation)
    normalizer.load_state_dict(state["observation"])
    return normalizer
