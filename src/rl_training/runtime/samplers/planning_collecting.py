"""Collection with planning by samplers, as the planning loop sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import HostAction
from rl_training.algorithms.muzero import MuZero
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.planning_collector import PlanningCollector
from rl_training.runtime.samplers.environments import SampledEnvironments
from rl_training.runtime.samplers.planning_sampler import PlanningSampler
from rl_training.runtime.samplers.replay_collecting import SampledDriver
from rl_training.runtime.samplers.replay_sampler import PlannedStep
from rl_training.runtime.samplers.rounds import SampledRounds, TakenStep


class SampledPlanningCollector(SampledDriver, PlanningCollector):
    """Takes the place of a `PlanningCollector` where samplers search."""

    def __init__(
        self,
        env: SampledEnvironments,
        actor: MuZero,
        make_replay: Callable[[np.ndarray, np.ndarray | None], TrajectoryReplay],
        config: TrainConfig,
        *,
        plan: Callable[[int, int], tuple[PlannedStep, ...]],
        update_follows: Callable[[int, int], bool],
        interrupted: Callable[[], bool],
        updates: float | None,
        device: torch.device,
        generator: np.random.Generator,
        report: Callable[[str], None],
    ) -> None:
        """The arguments are those of `SampledReplayCollector`."""
        self._update_follows, self._interrupted = update_follows, interrupted
        action = np.zeros(env.num_envs, np.int64)
        choices: Any = env.action_space
        self.rounds = SampledRounds(
            env,
            actor,
            config,
            make=PlanningSampler,
            example=HostAction(action, action),
            more={"search_policy": ((int(choices.n),), np.float32), "search_value": ((), np.float32)},
            plan=plan,
            updates=updates,
            stream=generator,
            report=report,
        )
        self.stored: Callable[[TrajectoryReplay], None] = lambda replay: None
        """Called after every step that was stored."""
        super().__init__(env, actor, make_replay, seed=config.seed, device=device)  # type: ignore[arg-type]

    @property
    def searches_for_all(self) -> bool:
        """Whether some sampler has to search for all environments."""
        groups = self.rounds.groups
        return any(groups.pool.command("searches_for_all", [None] * len(groups.rows)))

    def _keep(self, taken: TakenStep) -> None:
        self._store(taken.action, taken.step)
        step, found = taken.step, taken.stored
        self.replay.add_search(found["search_policy"], found["search_value"], step.terminated, step.truncated)
        self.stored(self.replay)
