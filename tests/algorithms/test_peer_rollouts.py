"""From the same weights and random numbers, runs here and in stable-baselines3 gather the same experience."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learning import Job
from learning_suites import PROOF
from peer_networks import assert_alike, start_alike
from records import OURS
from replay_parts import CPU, generator
from rl_training.algorithms.ppo import PPO
from rl_training.envs.make import make_vector_env
from rl_training.envs.normalize import normalizers_of, with_normalization
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.env_params import env_params
from rl_training.runtime.collector import RolloutCollector

pytest.importorskip("stable_baselines3")
pytest.importorskip("mujoco")

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from peers.stable_baselines3_models import make_peer

SEED, STEPS, ROLLOUTS = 1, 256, 3
NOISE, ORDER = 5, 6  # seeds of the random numbers of both sides


def hopper() -> TrainConfig:
    """Return the configuration of the stored comparison on Hopper, with short rollouts."""
    cell = next(cell for cell in PROOF if cell.name == "ppo-hopper-1m")
    short = (f"algo_kwargs.num_steps={STEPS}", "algo_kwargs.update_epochs=2")
    return Job(replace(cell, changes=(*cell.changes, *short)), OURS, SEED, Path("runs"), 1).config()


class OurSide:
    """Our environments, collector and algorithm, which begin as the peer does."""

    def __init__(self, config: TrainConfig, peer: Any) -> None:
        env = make_vector_env(config.task_name, config.env_kwargs, mode="training", num_envs=1, backend="local_sync")
        env = with_normalization(env, env_params(config, "training"), gamma=peer.gamma)
        self.algorithm = PPO(
            algorithm_params(config), env.observation_space, env.action_space, device=CPU, generator=generator(0)
        )
        start_alike(self.algorithm, peer)
        self.collector = RolloutCollector(
            env, self.algorithm, num_steps=STEPS, seed=SEED, device=CPU, generator=generator(NOISE)
        )
        statistics: list[Any] = [*normalizers_of(env).moments()]
        for moments in statistics:
            moments.mean, moments.var = 0 * moments.mean, 0 * moments.var + 1
            moments.count = 1e-4  # the peer begins with this weight of mean 0 and variance 1, we with none
        self.collector._observation, _ = env.reset([SEED])
        self.order = generator(ORDER)


def test_ppo_gathers_and_learns_on_hopper_as_the_peer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    config = hopper()
    peer = make_peer(config)
    peer.set_logger(Logger(None, []))
    ours = OurSide(config, peer)
    noise, order = generator(NOISE), generator(ORDER)
    monkeypatch.setattr(
        torch.distributions.Normal,
        "rsample",
        lambda normal, shape=None: normal.loc + normal.scale * torch.empty(normal.loc.shape).normal_(generator=noise),
    )
    monkeypatch.setattr(np.random, "permutation", lambda rows: torch.randperm(rows, generator=order).numpy())
    compared: list[int] = []

    class Compare(BaseCallback):
        def _on_step(self) -> bool:
            return len(compared) < ROLLOUTS

        def _on_rollout_end(self) -> None:
            rate = config.algo_kwargs["learning_rate"] * (1 - self.num_timesteps / config.total_timesteps)
            controls = {"learning_rate": rate, "clip_coef": config.algo_kwargs["clip_coef"], "ent_coef": 0.0}
            rollout, theirs = ours.collector.collect(controls), peer.rollout_buffer
            assert rollout is not None
            batch = ours.algorithm.prepare(rollout)
            for mine, other in (
                (rollout.observation, theirs.observations),
                (rollout.action, theirs.actions),
                (rollout.reward, theirs.rewards),  # nothing is truncated so early
                (batch.advantage.view(STEPS, 1), theirs.advantages),
            ):
                np.testing.assert_allclose(np.asarray(mine), other, rtol=1e-3, atol=1e-3)
            assert rollout.terminated.any()
            ours.algorithm.improve(batch, controls, ours.order)

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                assert_alike(ours.algorithm, peer)
                compared.append(self.num_timesteps)

    peer.learn(config.total_timesteps, callback=Compare())
    assert compared == [STEPS * (rollout + 1) for rollout in range(ROLLOUTS)]
