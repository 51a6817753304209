"""Training of PPO and of A2C, its special case."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.on_policy import run_on_policy
from rl_training.runtime.session import TrainingSession, TrainResult


def train_ppo(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train PPO as configured, or go on from a checkpoint."""
    with TrainingSession(config, callbacks=callbacks, checkpoint=checkpoint) as session:
        env = session.setup.make_env(gamma=session.params.gamma)
        algorithm = session.setup.make_algorithm(session.streams.initial())
        collector = RolloutCollector(
            env,
            algorithm,
            num_steps=session.params.num_steps,
            seed=session.config.seed,
            device=session.device,
            generator=session.streams["policy"],
        )
        session.start(algorithm, collector)
        run_on_policy(session, algorithm, collector)
        return session.result()
