"""The on-policy loop: collect a rollout with the current policy, learn from it, discard it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.ranks.opening import open_session
from rl_training.runtime.samplers.collecting import SampledCollector
from rl_training.runtime.samplers.payoff import Payoff
from rl_training.runtime.session import TrainingSession, TrainResult

AnyCollector: TypeAlias = RolloutCollector | SampledCollector


def train_on_policy(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train an on-policy algorithm as configured, or continue from a checkpoint."""
    with open_session(config, callbacks=callbacks, checkpoint=checkpoint) as session:
        algorithm, collector = begin_on_policy(session)
        while not session.done:
            _train_step(session, algorithm, collector)
        return session.result()


def begin_on_policy(session: TrainingSession) -> tuple[OnPolicyAlgorithm, AnyCollector]:
    """Make the environments, the algorithm and its collector, and start the session."""
    make = _collect_here if session.config.samplers is None else _collect_in_samplers
    algorithm, collector = make(session)
    session.start(algorithm, collector)
    return algorithm, collector


def _collect_here(session: TrainingSession) -> tuple[OnPolicyAlgorithm, AnyCollector]:
    env = session.setup.make_env(gamma=session.params.gamma)
    algorithm: OnPolicyAlgorithm = session.setup.make_algorithm(session.streams.initial())
    collector = RolloutCollector(
        env,
        algorithm,
        num_steps=session.params.num_steps,
        seed=session.seed,
        device=session.device,
        generator=session.streams["policy"],
    )
    session.setup.accelerate_collecting(collector)
    return algorithm, collector


def _collect_in_samplers(session: TrainingSession) -> tuple[OnPolicyAlgorithm, AnyCollector]:
    env = session.setup.make_sampled_environments(gamma=session.params.gamma)
    algorithm: OnPolicyAlgorithm = session.setup.make_algorithm(session.streams.initial())

    def following(steps: int) -> Mapping[str, float] | None:
        step = session.step + steps
        return session.controls_at(step) if step < session.config.total_timesteps else None

    collector = SampledCollector(
        env,
        algorithm,
        session.config,
        num_steps=session.params.num_steps,
        updates=session.setup.planned_updates,
        device=session.device,
        generator=session.streams.on_host("policy"),
        controls=session.controls_at(0),
        following=following,
        report=session.notify,
    )
    collector.payoff = Payoff(session, collector.groups)
    return algorithm, collector


def _train_step(session: TrainingSession, algorithm: OnPolicyAlgorithm, collector: AnyCollector) -> None:
    controls = session.controls()
    with session.timed("collect"):
        rollout = collector.collect(controls, interrupted=lambda: session.interrupted, on_step=session.count_episodes)
    if rollout is None:  # interrupted; what is needed to go on is saved
        return
    if isinstance(collector, SampledCollector):
        session.show(policy_lag=collector.updates_behind, bytes_moved=collector.bytes_moved)
        session.add_times(collector.take_waits())
    session.collected()
    with session.timed("update"):
        metrics = algorithm.update(rollout, controls, session.streams["update"])
    if isinstance(collector, SampledCollector):
        collector.payoff.updated()
    session.advance(rollout.transitions, metrics)
