"""The off-policy loop: step the environments, store the transitions, learn from sampled batches.

Rounds of gradient steps and updates of the target network are due when the environment step count passes multiples of
their interval, so their number does not depend on the number of environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import OffPolicyAlgorithm
from rl_training.algorithms.params.replay_params import ReplayParams
from rl_training.data.datasets.dataset_mix import DatasetMix
from rl_training.data.hindsight import HindsightReplay
from rl_training.data.replay import Replay
from rl_training.data.samplers import PrioritizedSampler, Sampler, UniformSampler
from rl_training.data.sequence_replay import SequenceReplay
from rl_training.envs.normalize import normalizers_of
from rl_training.envs.vector import VectorEnv
from rl_training.experiment.cadence import marks_between
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import env_params
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import ReplayCollector
from rl_training.runtime.ranks.opening import open_session
from rl_training.runtime.samplers.payoff import Payoff
from rl_training.runtime.samplers.replay_collecting import SampledReplayCollector
from rl_training.runtime.samplers.rounds import plan_round
from rl_training.runtime.session import TrainingSession, TrainResult
from rl_training.runtime.setup.mixed_dataset import mix_dataset
from rl_training.runtime.setup.replay_limits import ReplayDemand, fitting_replay
from rl_training.runtime.setup.update_rate import log_update_rate, warn_of_small_replay


def train_off_policy(
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    checkpoint: ResumePoint | None = None,
) -> TrainResult:
    """Train an off-policy algorithm as configured, or continue from a checkpoint."""
    with open_session(config, callbacks=callbacks, checkpoint=checkpoint) as session:
        algorithm, collector, mix = begin_off_policy(session)
        while not session.done or collector.steps_left:
            _train_step(session, algorithm, collector, mix)
        return session.result()


def begin_off_policy(session: TrainingSession) -> tuple[OffPolicyAlgorithm, ReplayCollector, DatasetMix | None]:
    """Make the environments, the algorithm, its collector with a replay and its dataset; start the session."""
    make = _collect_here if session.config.samplers is None else _collect_in_samplers
    algorithm, collector = make(session)
    log_update_rate(
        session.params.updates_per_round / session.params.train_interval,
        session.config.num_envs,
        repair=_fewer_updates(session.params),
    )
    mix = mix_dataset(session.setup, algorithm, collector.replay)
    session.start(algorithm, collector, [collector.replay])
    return algorithm, collector, mix


def _collect_here(session: TrainingSession) -> tuple[OffPolicyAlgorithm, ReplayCollector]:
    env = session.setup.make_env(gamma=session.params.gamma, raw=True)
    algorithm: OffPolicyAlgorithm = session.setup.make_algorithm(session.streams.initial())
    collector = ReplayCollector(
        env,
        algorithm,
        _replay_maker(session, env, algorithm),
        seed=session.seed,
        device=session.device,
        generator=session.streams["policy"],
    )
    return algorithm, collector


def _collect_in_samplers(session: TrainingSession) -> tuple[OffPolicyAlgorithm, ReplayCollector]:
    env: Any = session.setup.make_sampled_environments(gamma=session.params.gamma)
    algorithm: OffPolicyAlgorithm = session.setup.make_algorithm(session.streams.initial())
    params: ReplayParams = session.params

    def may_learn(before: int, after: int) -> bool:
        return updates_due(before, after, params, made=session.update_count, stored=1) > 0

    def update_follows(before: int, after: int) -> bool:
        return _updates_due(session, params, collector.replay, before, after) > 0

    collector = SampledReplayCollector(
        env,
        algorithm,
        _replay_maker(session, env, algorithm),
        session.config,
        plan=partial(plan_round, session, learns=may_learn, random_until=params.learning_starts),
        update_follows=update_follows,
        interrupted=lambda: session.interrupted,
        updates=session.setup.planned_updates,
        device=session.device,
        generator=session.streams.on_host("policy"),
        report=session.notify,
    )
    collector.payoff = Payoff(session, collector.rounds.groups)
    return algorithm, collector


def _replay_maker(
    session: TrainingSession, env: VectorEnv, algorithm: OffPolicyAlgorithm
) -> Callable[[np.ndarray, np.ndarray | None], Replay]:
    """Return the function that makes the replay for examples of one step's actions and masks."""
    return lambda action, mask: fitting_replay(
        session,
        ReplayDemand.of(session.config, session.params, env, action, mask),
        lambda: make_replay(session, env, action, algorithm.memory_size),
    )


def _fewer_updates(params: ReplayParams) -> str:
    """Return the repair that reduces the number of updates."""
    if params.gradient_steps == -1:
        return "set algo_kwargs.gradient_steps to a number for fewer"
    lower = "lower algo_kwargs.gradient_steps or " if params.gradient_steps > 1 else ""
    return f"{lower}raise algo_kwargs.train_interval for fewer"


def make_sampler(params: Any) -> Sampler:
    """Return the sampler that the parameters select."""
    if params.by_priority:
        return PrioritizedSampler(params.buffer_size, alpha=params.per_alpha, eps=1e-6)
    return UniformSampler(params.buffer_size)


def make_replay(session: TrainingSession, env: VectorEnv, action: np.ndarray, memory_size: int = 0) -> Replay:
    """Return the replay that the parameters select, of sequences if the policy has a memory."""
    params = session.params
    sampler = make_sampler(params)
    settings: dict[str, Any] = {
        "capacity": params.buffer_size,
        "num_envs": env.num_envs,
        "gamma": params.gamma,
        "stack": env_params(session.config, "training").frame_stack,
        "directory": session.setup.place if params.memory_map else None,
        "normalizers": normalizers_of(env),
    }
    if memory_size:
        recurrent = params.recurrent
        return SequenceReplay(
            env.observation_space,
            action,
            sampler,
            memory_size=memory_size,
            sequence_length=recurrent.sequence_length,
            burn_in=recurrent.burn_in,
            n_step=params.n_step,
            **settings,
        )
    if params.hindsight == "none":
        return Replay(env.observation_space, action, sampler, n_step=params.n_step, **settings)
    return HindsightReplay(
        env.observation_space,
        action,
        sampler,
        task=session.setup.goal_task(),
        strategy=params.hindsight,
        ratio=params.hindsight_ratio,
        **settings,
    )


def updates_due(before: int, after: int, params: ReplayParams, *, made: int, stored: int) -> int:
    """Return the number of updates due after the steps from `before` to `after`, given those `made` and `stored`.

    Updates that were due before the first n-step return was complete are made up for.
    """
    if not stored:
        return 0
    rounds = marks_between(before if made else 0, after, params.train_interval, beyond=params.learning_starts)
    return rounds * params.updates_per_round


def _updates_due(session: TrainingSession, params: ReplayParams, replay: Replay, before: int, after: int) -> int:
    """Return the number of updates due now; steps beyond the horizon count for none."""
    after = min(after, session.config.total_timesteps)  # which need not be a multiple of num_envs
    return updates_due(before, after, params, made=session.update_count, stored=session.fewest(replay.size))


def _train_step(
    session: TrainingSession, algorithm: OffPolicyAlgorithm, collector: ReplayCollector, mix: DatasetMix | None
) -> None:
    params: ReplayParams = algorithm.params
    controls = session.controls()
    before = session.step
    with session.timed("collect"):
        step = collector.step(controls, random=before < params.learning_starts)
    if step is None:  # interrupted; what is needed to go on is saved
        return
    session.count_episodes(step)
    if isinstance(collector, SampledReplayCollector):
        collector.rounds.show(session)
    after = before + collector.env.num_envs * session.learners
    updates = _updates_due(session, params, collector.replay, before, after)
    metrics: dict[str, Tensor] = {}
    with session.timed("update"):
        algorithm.steps_taken(before, min(after, session.config.total_timesteps))
        if updates:
            warn_of_small_replay(session, collector.replay.size, params.batch_size)
            session.collected()
            metrics = learn(session, algorithm, collector.replay, controls, updates, mix)
    if updates and isinstance(collector, SampledReplayCollector):
        collector.payoff.updated()
    session.advance(collector.env.num_envs, metrics, updates=updates, check_finite=False)


def learn(
    session: TrainingSession,
    algorithm: OffPolicyAlgorithm,
    replay: Replay,
    controls: Mapping[str, float],
    updates: int,
    mix: DatasetMix | None = None,
) -> dict[str, Tensor]:
    """Make gradient steps and return the means of their metrics; `mix` replaces the replay's batches."""
    size, device = algorithm.params.batch_size, session.device
    draws = session.streams.numpy("replay")
    reports: list[dict[str, Tensor]] = []
    if isinstance(replay.sampler, PrioritizedSampler):
        for _ in range(updates):  # each sample depends on the errors of the previous one
            (batch,), rows = replay.sample(size, draws, device, beta=controls["per_beta"])
            report = algorithm.update(batch, controls, session.streams["update"])
            errors = report.pop("td_error", None)
            reports.append(report)
            if errors is not None:
                replay.sampler.update(rows[0], errors.cpu().numpy())
    else:
        if mix is None:
            batches, _ = replay.sample(size, draws, device, count=updates)
        else:
            batches = mix.sample(size, draws, device, count=updates)
        reports = [algorithm.update(batch, controls, session.streams["update"]) for batch in batches]
    if len(reports) == 1:
        return reports[0]
    names = dict.fromkeys(name for report in reports for name in report)
    return {name: torch.stack([report[name] for report in reports if name in report]).mean() for name in names}
