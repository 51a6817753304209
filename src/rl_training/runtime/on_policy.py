"""The on-policy loop: collect a rollout with the current policy, learn from it, discard it."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.session import TrainingSession, TrainResult


def train_on_policy(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train an on-policy algorithm as configured, or continue from a checkpoint."""
    with TrainingSession(config, callbacks=callbacks, checkpoint=checkpoint) as session:
        algorithm, collector = begin_on_policy(session)
        while not session.done:
            _train_step(session, algorithm, collector)
        return session.result()


def begin_on_policy(session: TrainingSession) -> tuple[OnPolicyAlgorithm, RolloutCollector]:
    """Make the environments, the algorithm and its collector, and start the session."""
    env = session.setup.make_env(gamma=session.params.gamma)
    algorithm: OnPolicyAlgorithm = session.setup.make_algorithm(session.streams.initial())
    collector = RolloutCollector(
        env,
        algorithm,
        num_steps=session.params.num_steps,
        seed=session.config.seed,
        device=session.device,
        generator=session.streams["policy"],
    )
    session.setup.accelerate_collecting(collector)
    session.start(algorithm, collector)
    return algorithm, collector


def _train_step(session: TrainingSession, algorithm: OnPolicyAlgorithm, collector: RolloutCollector) -> None:
    controls = session.controls()
    with session.timed("collect"):
        rollout = collector.collect(controls, interrupted=lambda: session.interrupted, on_step=session.count_episodes)
    if rollout is None:  # interrupted; the partial rollout is saved
        return
    session.collected()
    with session.timed("update"):
        metrics = algorithm.update(rollout, controls, session.streams["update"])
    session.advance(rollout.transitions, metrics)
