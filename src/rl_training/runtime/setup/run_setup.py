"""Preparation and checks before a run directory exists, so that a user's mistake leaves nothing behind."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space

from rl_training.data.hindsight import GoalTask, of_every_goal
from rl_training.envs.make import make_slots
from rl_training.envs.spaces import joined_spaces, space_to_json
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig, algorithm_params, check_config
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.named_callbacks import CALLBACKS, named_callbacks
from rl_training.experiment.own_code.run_code import admit_code, loaded_from, remember_code
from rl_training.experiment.own_code.user_code import LoadedFrom
from rl_training.experiment.registry import admit_algorithm, get_algorithm_spec
from rl_training.experiment.tasks import Task, tasks_of
from rl_training.runtime.acting.films import Films
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.ranks.share import WHOLE, Share
from rl_training.runtime.recording.trackers.opening import check_trackers
from rl_training.runtime.run_utils import resolve_device
from rl_training.runtime.samplers.environments import SampledEnvironments
from rl_training.runtime.samplers.transport.backends import check_backend
from rl_training.runtime.setup.acceleration import accelerate, accelerate_collecting, log_acceleration, planned_updates
from rl_training.runtime.setup.callback_setup import check_named_callbacks
from rl_training.runtime.setup.dataset_setup import DatasetTask, check_same_dataset, dataset_record, with_dataset
from rl_training.runtime.setup.mixed_dataset import open_mixed_dataset
from rl_training.runtime.setup.restored_state import check_num_envs, read_checked_state
from rl_training.runtime.setup.size_limits import check_sizes
from rl_training.runtime.setup.task_setup import TaskSetup, set_up_tasks
from rl_training.runtime.setup.threads import choose_threads, threads_of
from rl_training.runtime.setup.torch_setup import TorchSetup
from rl_training.runtime.setup.user_networks import build_algorithm
from rl_training.runtime.setup.warm_start import StartingWeights, WarmStart

if TYPE_CHECKING:
    from rl_training.runtime.setup.replay_limits import ReplayDemand


def code_origin(resumed: ResumePoint | None) -> LoadedFrom | None:
    """Return the origin of the names of a resumed run, which the user did not write now."""
    return None if resumed is None else loaded_from(resumed.checkpoint, trust_code=resumed.trust_code)


def _written_names(resumed: ResumePoint | None) -> set[str]:
    """Return the names that the user has written for a fork."""
    if resumed is None or CALLBACKS not in resumed.changed:
        return set()
    before, after = ({entry.name for entry in named_callbacks(entries)} for entries in resumed.changed[CALLBACKS])
    return after - before - {resumed.checkpoint.config["env_id"]}


logger = logging.getLogger("rl_training")


class RunSetup:
    """A checked configuration with its device, tasks and torch settings."""

    def __init__(
        self,
        config: TrainConfig,
        resume_point: ResumePoint | None,
        weights: StartingWeights | None = None,
        share: Share = WHOLE,
    ) -> None:
        """`weights` are loaded into the algorithm of a new run; `share` is the part of the run that is set up."""
        self.share = share
        origin = code_origin(resume_point)
        admit_algorithm(config.algo, origin)  # the configuration is checked against its parameters
        self.config = check_config(config)
        if resume_point is None:
            self.config = with_dataset(self.config)
        self.resume_point = resume_point
        admit_code(self.config, origin, written=_written_names(resume_point))
        check_named_callbacks(self.config)
        self.spec = get_algorithm_spec(self.config.algo)
        self.own_config = share.of_config(self.config)
        self.params = share.of_params(algorithm_params(self.config))
        check_trackers(self.config)
        check_backend(self.config)
        self.device: torch.device = share.of_device(resolve_device(self.config.device))
        self.state: dict[str, Any] | None = None
        """State of the checkpoint to continue from, until it is loaded."""
        if resume_point is not None:
            saved = resume_point.checkpoint
            self.state = share.of_state(read_checked_state(saved, self.config), saved)
            if self.spec.loop != "offline":
                check_num_envs(saved, self.own_config, self.state["collector"])
        self.tasks = self._set_up_tasks()
        self.mixed_dataset = open_mixed_dataset(self.config, self.params, self.tasks[0], resume_point)
        Films(self.config).check([task.task for task in self.tasks])
        check_sizes(
            self.own_config,
            self.params,
            [(task.observation_space, task.action_space) for task in self.tasks],
            vector=all(task.backend[0] == "vector" for task in self.tasks),
        )
        self.replay_demands: list[ReplayDemand] = []  # of the replays made so far
        self.acceleration: dict[str, str | None] = {}
        """The kernel of the algorithm, or the reason why there is none; set when the algorithm is made."""
        threads = share.of_threads(
            choose_threads(
                self.config,
                large_images=any(task.has_large_images for task in self.tasks),
                hidden_sizes=getattr(self.params, "hidden_sizes", None),
            )
        )
        if resume_point is not None and self.config.torch_threads is None:
            threads = threads_of(resume_point.checkpoint)
        self.warm_start = weights
        if weights is None and resume_point is None and self.config.init is not None:
            self.warm_start = WarmStart(self.config, self.spaces_as_json())
        self.torch = TorchSetup(threads=threads, deterministic=self.config.deterministic, device=self.device)
        remember_code(self.config)

    def _set_up_tasks(self) -> list[TaskSetup]:
        tasks = tasks_of(self.config)
        if self.spec.loop != "offline":
            return set_up_tasks(tasks, self.own_config, self.params)
        task = DatasetTask(tasks[0], self.config, self.params)
        if self.resume_point is not None:
            check_same_dataset(task.dataset, self.resume_point.checkpoint)
        return [task]

    @property
    def dataset(self) -> dict[str, Any] | None:
        """The record of the dataset for metadata and manifests, None if the run has none."""
        task = self.tasks[0]
        dataset = task.dataset if isinstance(task, DatasetTask) else self.mixed_dataset
        return None if dataset is None else dataset_record(dataset)

    @property
    def place(self) -> Path:
        """The directory for large files of the run: its own if it continues, else its output directory.

        A run may have been moved since its configuration was written.
        """
        resumed = self.resume_point
        return self.config.output_dir if resumed is None or resumed.fork else resumed.checkpoint.run_dir

    def make_env(self, *, gamma: float, raw: bool = False) -> VectorEnv:
        """Return the training environments of the only task; `raw` leaves scaling to a replay."""
        (task,) = self.tasks
        return task.make_env(gamma=gamma, raw=raw)

    def make_sampled_environments(self, *, gamma: float) -> SampledEnvironments:
        """Return the training environments of the only task, for samplers to make."""
        (task,) = self.tasks
        return task.make_sampled_environments(gamma=gamma)

    def make_algorithm(self, generator: torch.Generator) -> Any:
        """Return the algorithm for the environments' spaces, with random weights or those of `init`.

        The environments, which have been made, get the observation statistics of `init` before their first observation.
        """
        seen = self._joined({task.task.name: task.seen_space for task in self.tasks})
        taken = self._joined({task.task.name: task.taken_space for task in self.tasks})
        algorithm = build_algorithm(self.spec, self.params, seen, taken, self.device, generator)
        if self.warm_start is not None:
            self.warm_start.apply(algorithm, self.tasks)
        self.acceleration = (
            accelerate(algorithm, self.config.acceleration, self.planned_updates)
            if self.share.count == 1
            else {"kernel": None, "reason": "several learners take the mean of their gradients between two steps"}
        )
        log_acceleration(self.acceleration)
        return algorithm

    @property
    def planned_updates(self) -> float:
        """About how many gradient steps the run takes."""
        return planned_updates(self.config, self.params, self.spec.loop)

    def accelerate_collecting(self, collector: Any) -> None:
        """Attach the kernel that knows a collector of rollouts, if there is one."""
        kernel = accelerate_collecting(collector, self.config.acceleration) if self.share.count == 1 else None
        if kernel is not None:
            self.acceleration["kernel"] = f"{self.acceleration['kernel']}, {kernel}"
            logger.info("acceleration: the kernel `%s` collects", kernel)

    def lineage(self) -> dict[str, Any] | None:
        """Return the metadata entry about the run that this one started from, None if there is none."""
        if self.resume_point is not None:
            return self.resume_point.lineage()
        return None if self.warm_start is None else self.warm_start.lineage()

    def _joined(self, by_task: dict[str, Space[Any]]) -> Space[Any]:
        """Return the tasks' spaces joined in the form that the algorithm expects."""
        return joined_spaces(by_task) if self.spec.many_tasks else next(iter(by_task.values()))

    def make_policies(self, algorithm: Any) -> dict[Task, Policy]:
        """Return a policy for each task, which uses the algorithm's current weights."""
        return {
            task.task: Policy(
                algorithm.actor(task.task.name) if self.spec.many_tasks else algorithm,
                task.observation_space,
                task.action_space,
                task.normalizers.observation,
            )
            for task in self.tasks
        }

    def goal_task(self) -> GoalTask:
        """Return reward and termination functions of goals in a goal-conditioned environment."""
        assert self.config.env_id is not None
        (slot,) = make_slots(self.config.env_id, self.config.env_kwargs, mode="training", count=1)
        if not slot.env.has_wrapper_attr("compute_reward"):
            raise ConfigError(
                f"algo_kwargs.hindsight: {self.config.env_id} has no compute_reward(achieved, desired, info); "
                "set hindsight to none or choose a goal-conditioned environment"
            )
        compute_reward = slot.env.get_wrapper_attr("compute_reward")
        signs = env_params(self.config, "training").reward_sign

        def reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
            paid = of_every_goal(compute_reward, achieved, desired)
            return np.sign(paid) if signs else paid  # as the environments give it to the replay

        terminated = None
        if slot.env.has_wrapper_attr("compute_terminated"):
            terminated = partial(of_every_goal, slot.env.get_wrapper_attr("compute_terminated"))
        return GoalTask(reward=reward, terminated=terminated)

    def normalizer_state_dict(self) -> dict[str, Any] | None:
        """Return the state of the normalisers, by task if the algorithm has many; None for a task without any."""
        states = {task.task.name: task.normalizer_state_dict() for task in self.tasks}
        return states if self.spec.many_tasks else next(iter(states.values()))

    def load_normalizer_state_dict(self, state: Any) -> None:
        """Restore the state of the normalisers."""
        for task in self.tasks:
            task.load_normalizer_state_dict(state[task.task.name] if self.spec.many_tasks else state)

    def spaces_as_json(self) -> dict[str, Any]:
        """Return the spaces for a checkpoint's manifest."""
        return {
            "observation": space_to_json(self._joined({task.task.name: task.observation_space for task in self.tasks})),
            "action": space_to_json(self._joined({task.task.name: task.action_space for task in self.tasks})),
        }

    def close(self) -> None:
        """Close the environments and restore torch's settings."""
        self.torch.restore()
        for task in self.tasks:
            task.close()
