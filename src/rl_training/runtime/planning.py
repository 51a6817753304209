"""The planning loop: search before every step, keep what the search said, learn from windows of it.

Gradient steps follow the replay ratio: their number depends on the environment steps taken, not on how many
environments take them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.muzero import MuZero, exploration
from rl_training.algorithms.planning_batches import Draws
from rl_training.algorithms.planning_targets import search_errors
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.envs.vector import VectorEnv
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.env_params import env_params
from rl_training.runtime.cadence import marks_between
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.off_policy import make_sampler
from rl_training.runtime.planning_collector import PlanningCollector
from rl_training.runtime.replay_limits import fitting_replay
from rl_training.runtime.session import TrainingSession, TrainResult

CLIPPED_SHARE = 0.01  # of the targets beyond the support that is worth a warning
LOOK_INTERVAL = 5  # updates between looks at it: each waits for the device


def train_planning(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train a planning algorithm as configured, or go on from a checkpoint."""
    with TrainingSession(config, callbacks=callbacks, checkpoint=checkpoint) as session:
        env = session.setup.make_env(gamma=session.params.gamma)
        algorithm = session.setup.make_algorithm(env, session.streams.initial())
        collector = PlanningCollector(
            env,
            algorithm,
            lambda action, mask: fitting_replay(session, env, action, mask, make_trajectory_replay),
            seed=session.config.seed,
            device=session.device,
            generator=session.streams.numpy("search"),
        )
        session.start(algorithm, collector, collector.replay)
        loop = PlanningLoop(session, algorithm, collector)
        while not session.done:
            loop.step()
        return session.result()


def make_trajectory_replay(session: TrainingSession, env: VectorEnv, action: np.ndarray) -> TrajectoryReplay:
    """Return the replay that the parameters ask for."""
    params = session.params
    return TrajectoryReplay(
        env.observation_space,
        action,
        make_sampler(params),
        actions=int(env.action_space.n),  # type: ignore[attr-defined]
        capacity=params.buffer_size,
        num_envs=env.num_envs,
        stack=env_params(session.config, "training").frame_stack,
        directory=session.config.output_dir if params.memory_map else None,
    )


class PlanningLoop:
    """Steps and learns until the session is done."""

    def __init__(self, session: TrainingSession, algorithm: MuZero, collector: PlanningCollector) -> None:
        self.session = session
        self.algorithm = algorithm
        self.collector = collector
        self.draws = Draws(
            replay=session.streams.numpy("replay"),
            search=session.streams.numpy("search"),
            augmentation=session.streams["augmentation"],
        )
        self._warned = False

    def step(self) -> None:
        """Take one step in every environment and make the gradient steps that are due."""
        session, params = self.session, self.algorithm.params
        controls = session.controls()
        before = session.step
        with session.timed("collect"):
            session.count_episodes(self.collector.step(controls))
            self._prioritize()
        # Steps beyond the horizon, where it is no multiple of num_envs, call for no updates.
        after = min(before + self.collector.env.num_envs, session.config.total_timesteps)
        updates = updates_between(before, after, params.replay_ratio, beyond=params.learning_starts)
        metrics: dict[str, Tensor] = {}
        with session.timed("update"):
            if updates:
                session.collected()
                metrics = self._learn(controls, updates)
        session.advance(self.collector.env.num_envs, metrics, updates=updates, check_finite=False)

    def _prioritize(self) -> None:
        """Set the priorities of the steps taken `n_step` steps ago, whose returns are known by now."""
        replay, params = self.collector.replay, self.algorithm.params
        first = replay.count - (params.n_step + 1) * replay.num_envs
        if not params.by_priority or first < replay.oldest:
            return
        rows = np.arange(first, first + replay.num_envs) % replay.capacity
        window = replay.windows(rows, params.n_step + 1)
        replay.sampler.update(rows, search_errors(window, params.n_step, params.discount))

    def _learn(self, controls: Mapping[str, float], updates: int) -> dict[str, Tensor]:
        reports = []
        replay = self.collector.replay
        for _ in range(updates):
            rows, weight = replay.draw(
                self.algorithm.params.batch_size, controls.get("per_beta", 0.0), self.draws.replay
            )
            batch = self.algorithm.batches.make(
                replay,
                rows,
                weight,
                num_simulations=int(controls["num_simulations"]),
                exploration=exploration(controls),
                total_timesteps=self.session.config.total_timesteps,
                draws=self.draws,
            )
            reports.append(self.algorithm.update(batch, controls))
        metrics = {name: torch.stack([report[name] for report in reports]).mean() for name in reports[0]}
        if not self._warned and marks_between(self.algorithm.updates - updates, self.algorithm.updates, LOOK_INTERVAL):
            self._warn_of_clipping(float(metrics["clipped_targets"]))
        return metrics

    def _warn_of_clipping(self, share: float) -> None:
        """Say once that the support is too small."""
        if share > CLIPPED_SHARE:
            self._warned = True
            self.session.say(
                f"{share:.1%} of the value targets and rewards lie beyond algo_kwargs.support_size "
                f"{self.algorithm.params.support_size} and are clipped; raise it"
            )


def updates_between(before: int, after: int, ratio: float, *, beyond: int) -> int:
    """Return how many gradient steps are due between two numbers of environment steps, at `ratio` per step."""
    due_before, due_after = (math.floor(max(0, step - beyond) * ratio + 1e-9) for step in (before, after))
    return due_after - due_before
