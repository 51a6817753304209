"""The planning loop: search before every step, store the search results, learn from windows of steps.

Gradient steps follow the replay ratio: their number depends on the environment steps taken, not on the number of
environments.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import PlanningAlgorithm
from rl_training.algorithms.muzero import MuZero, exploration
from rl_training.algorithms.planning.batches import BatchMaker, Draws
from rl_training.algorithms.planning.params import PlanningParams
from rl_training.algorithms.planning.targets import search_errors
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.envs.normalize import normalizers_of
from rl_training.envs.step import StepBatch
from rl_training.envs.vector import VectorEnv
from rl_training.experiment.cadence import marks_between
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.tasks import is_suite
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.off_policy import make_sampler
from rl_training.runtime.planning_collector import ActionConverter, PlanningCollector
from rl_training.runtime.samplers.payoff import Payoff
from rl_training.runtime.samplers.planning_collecting import SampledPlanningCollector
from rl_training.runtime.samplers.rounds import plan_round
from rl_training.runtime.session import TrainingSession, TrainResult
from rl_training.runtime.setup.replay_limits import ReplayDemand, fitting_replay
from rl_training.runtime.setup.streams import derive_seeds
from rl_training.runtime.setup.task_setup import TaskSetup
from rl_training.runtime.setup.update_rate import log_update_rate, warn_of_small_replay
from rl_training.search.search import SearchResult

CLIPPED_SHARE = 0.01  # fraction of targets beyond the support from which a warning is given
CLIPPING_CHECK_INTERVAL = 5  # updates between checks: each synchronises with the device


def train_planning(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train a planning algorithm for one task as configured, or continue from a checkpoint."""
    with TrainingSession(config, callbacks=callbacks, checkpoint=checkpoint) as session:
        begin = _plan_here if session.config.samplers is None else _plan_in_samplers
        loop = begin(session)
        while not session.done or loop.collector.steps_left:
            loop.step()
        return session.result()


def _plan_here(session: TrainingSession) -> SingleTaskLoop:
    (task,) = session.setup.tasks
    task.make_env(gamma=session.params.gamma, raw=True)
    algorithm = session.setup.make_algorithm(session.streams.initial())
    collector = make_planning_collector(session, task, algorithm)
    log_replay_ratio(session)
    session.start(algorithm, collector, [collector.replay])
    return SingleTaskLoop(session, algorithm, collector)


def _plan_in_samplers(session: TrainingSession) -> SingleTaskLoop:
    (task,) = session.setup.tasks
    params: PlanningParams = session.params
    env = task.make_sampled_environments(gamma=params.gamma)
    algorithm: MuZero = session.setup.make_algorithm(session.streams.initial())

    def learns(before: int, after: int) -> bool:
        horizon = session.config.total_timesteps
        return updates_between(before, min(after, horizon), params.replay_ratio, beyond=params.learning_starts) > 0

    # With a lag, acting and learning draw at the same time: each needs a stream of its own.
    stream = "sampled_search" if session.config.policy_lag else "search"
    collector = SampledPlanningCollector(
        env,
        algorithm,
        _replay_maker(session, task, env),
        session.config,
        plan=partial(plan_round, session, learns=learns),
        update_follows=learns,
        interrupted=lambda: session.interrupted,
        updates=session.setup.planned_updates,
        device=session.device,
        generator=session.streams.numpy(stream),
        report=session.notify,
    )
    log_replay_ratio(session)
    session.start(algorithm, collector, [collector.replay])
    collector.payoff = Payoff(session, collector.rounds.groups)
    collector.rounds.groups.shares_acting = not collector.searches_for_all
    if not collector.rounds.groups.shares_acting:
        session.notify(
            "samplers: rounding in this model's search depends on how many environments there are, so every sampler "
            "searches for all of them; leave samplers out unless the environments themselves are slow"
        )
    return SampledTaskLoop(session, algorithm, collector)


def log_replay_ratio(session: TrainingSession) -> None:
    """Log the number of updates that the replay ratio gives, before the run starts."""
    num_envs = session.config.num_envs * len(session.setup.tasks)
    log_update_rate(session.params.replay_ratio, num_envs, repair="lower algo_kwargs.replay_ratio for fewer")


def make_planning_collector(session: TrainingSession, task: TaskSetup, actor: ActionConverter) -> PlanningCollector:
    """Return the collector of one task, with a replay that fits into memory and disk; its environments must exist."""
    env = task.env
    assert env is not None
    seed = session.config.seed
    if is_suite(session.config):  # two tasks of one environment should not draw the same numbers
        (seed,) = derive_seeds(seed, "task", task.task.name)
    return PlanningCollector(env, actor, _replay_maker(session, task, env), seed=seed, device=session.device)


def _replay_maker(
    session: TrainingSession, task: TaskSetup, env: Any
) -> Callable[[np.ndarray, np.ndarray | None], TrajectoryReplay]:
    """Return the function that makes the replay of a task for examples of one step's actions and masks."""
    stack = env_params(task.task.env_kwargs, "training").frame_stack

    def make_replay(action: np.ndarray, mask: np.ndarray | None) -> TrajectoryReplay:
        demand = ReplayDemand.of(session.config, session.params, env, action, mask, stack=stack)
        # The tasks share the run's steps: together they fill as many rows as one would.
        demand = dataclasses.replace(demand, steps=-(-demand.steps // len(session.setup.tasks)))
        return fitting_replay(session, demand, lambda: make_trajectory_replay(session, env, action, stack))

    return make_replay


def make_trajectory_replay(
    session: TrainingSession, env: VectorEnv, action: np.ndarray, stack: int
) -> TrajectoryReplay:
    """Return the replay that the parameters select."""
    params = session.params
    return TrajectoryReplay(
        env.observation_space,
        action,
        make_sampler(params),
        actions=int(env.action_space.n),  # type: ignore[attr-defined]
        capacity=params.buffer_size,
        num_envs=env.num_envs,
        stack=stack,
        directory=session.setup.place if params.memory_map else None,
        normalizers=normalizers_of(env),
    )


class PlanningLoop(ABC):
    """Steps and learns until the session is done."""

    def __init__(
        self, session: TrainingSession, algorithm: PlanningAlgorithm, replays: Sequence[TrajectoryReplay]
    ) -> None:
        self.session = session
        self.algorithm: Any = algorithm
        self.params: PlanningParams = algorithm.params
        self.replays = replays
        self.draws = Draws(
            replay=session.streams.numpy("replay"),
            search=session.streams.numpy("search"),
            augmentation=session.streams["augmentation"],
        )
        self._warned = False

    @abstractmethod
    def collect(self, controls: Mapping[str, float]) -> int:
        """Search, take one step in every environment and return the number of steps; 0 if it was interrupted."""

    @abstractmethod
    def update(self, controls: Mapping[str, float]) -> dict[str, Tensor]:
        """Make one gradient step and return its metrics."""

    def step(self) -> None:
        """Take one step in every environment and make the gradient steps that are due."""
        session = self.session
        controls = session.controls()
        before = session.step
        with session.timed("collect"):
            steps = self.collect(controls)
        if not steps:  # what is needed to go on is saved
            return
        # Steps beyond the horizon, if it is not a multiple of num_envs, count for no update.
        after = min(before + steps, session.config.total_timesteps)
        updates = updates_between(before, after, self.params.replay_ratio, beyond=self.params.learning_starts)
        metrics: dict[str, Tensor] = {}
        with session.timed("update"):
            self.algorithm.steps_taken(before, after)
            if updates:
                smallest = min(replay.size for replay in self.replays)
                warn_of_small_replay(session, smallest, self.params.batch_size // len(self.replays))
                session.collected()
                metrics = self._learn(controls, updates)
        session.advance(steps, metrics, updates=updates, check_finite=False)
        self.show()

    def show(self) -> None:  # noqa: B027 - optional
        """Add values to the rows besides metrics and scheduled scalars; also called after an evaluation."""

    def _learn(self, controls: Mapping[str, float], updates: int) -> dict[str, Tensor]:
        reports = [self.update(controls) for _ in range(updates)]
        metrics = {name: torch.stack([report[name] for report in reports]).mean() for name in reports[0]}
        done = self.session.update_count
        if not self._warned and marks_between(done, done + updates, CLIPPING_CHECK_INTERVAL):
            clipped = [share for name, share in metrics.items() if name.startswith("clipped_targets")]
            self._warn_of_clipping(float(torch.stack(clipped).max()))
        return metrics

    def take(self, collector: PlanningCollector, found: SearchResult) -> StepBatch:
        """Take the step that a search selected in one task's environments."""
        step = collector.follow(found)
        self._prioritize(collector.replay)
        return step

    def _prioritize(self, replay: TrajectoryReplay) -> None:
        """Set the priorities of the steps taken `n_step` steps ago, whose returns are now known."""
        params = self.params
        first = replay.count - (params.n_step + 1) * replay.num_envs
        if not params.by_priority or first < replay.oldest:
            return
        rows = np.arange(first, first + replay.num_envs) % replay.capacity
        window = replay.windows(rows, params.n_step + 1)
        replay.sampler.update(rows, search_errors(window, params.n_step, params.discount))

    def draw_batch(
        self, replay: TrajectoryReplay, batches: BatchMaker, size: int, controls: Mapping[str, float]
    ) -> UnrollBatch:
        """Return a training batch of windows of one task."""
        rows, weight = replay.draw(size, controls.get("per_beta", 0.0), self.draws.replay)
        return batches.make(
            replay,
            rows,
            weight,
            num_simulations=int(controls["num_simulations"]),
            exploration=exploration(controls, acting=False),
            total_timesteps=self.session.config.total_timesteps,
            draws=self.draws,
        )

    def _warn_of_clipping(self, share: float) -> None:
        """Warn once that the support is too small."""
        if share > CLIPPED_SHARE:
            self._warned = True
            self.session.notify(
                f"{share:.1%} of the value targets and rewards lie beyond algo_kwargs.support_size "
                f"{self.params.support_size} and are clipped; raise it"
            )


class SingleTaskLoop(PlanningLoop):
    """Loop for one task with one replay."""

    def __init__(self, session: TrainingSession, algorithm: MuZero, collector: PlanningCollector) -> None:
        super().__init__(session, algorithm, [collector.replay])
        self.collector = collector

    def collect(self, controls: Mapping[str, float]) -> int:
        """Search, take one step in every environment and return the number of steps."""
        found = self.algorithm.plan(*self.collector.shown(), controls, self.draws.search)
        self.session.count_episodes(self.take(self.collector, found))
        return self.collector.env.num_envs

    def update(self, controls: Mapping[str, float]) -> dict[str, Tensor]:
        """Make one gradient step and return its metrics."""
        batch = self.draw_batch(self.collector.replay, self.algorithm.batches, self.params.batch_size, controls)
        return self.algorithm.update(batch, controls, self.session.streams["update"])


class SampledTaskLoop(SingleTaskLoop):
    """Loop for one task whose samplers search and step."""

    collector: SampledPlanningCollector

    def __init__(self, session: TrainingSession, algorithm: MuZero, collector: SampledPlanningCollector) -> None:
        super().__init__(session, algorithm, collector)
        collector.stored = self._prioritize

    def step(self) -> None:
        """Take the next step of all environments and make the gradient steps that are due."""
        before = self.session.update_count
        super().step()
        if self.session.update_count > before:
            self.collector.payoff.updated()

    def collect(self, controls: Mapping[str, float]) -> int:
        """Return the number of steps of the next step of all environments; 0 if it was interrupted."""
        step = self.collector.next_step()
        if step is None:
            return 0
        self.session.count_episodes(step)
        self.collector.rounds.show(self.session)
        return self.collector.env.num_envs


def updates_between(before: int, after: int, ratio: float, *, beyond: int) -> int:
    """Return the number of gradient steps due between two environment step counts, at `ratio` per step."""
    due_before, due_after = (math.floor(max(0, step - beyond) * ratio + 1e-9) for step in (before, after))
    return due_after - due_before
