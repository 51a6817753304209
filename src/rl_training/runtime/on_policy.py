"""The on-policy loop: collect a rollout with the current policy, learn from it, forget it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from rl_training.data.rollout import Rollout
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.session import TrainingSession


class OnPolicyAlgorithm(Protocol):
    """What the loop needs of an algorithm."""

    def update(self, rollout: Rollout, controls: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        """Learn from one rollout and return metrics."""


def run_on_policy(session: TrainingSession, algorithm: OnPolicyAlgorithm, collector: RolloutCollector) -> None:
    """Train until the session is done."""
    while not session.done:
        with session.timed("collect"):
            rollout = collector.collect(interrupted=lambda: session.interrupted, on_step=session.count_episodes)
        if rollout is None:
            return
        session.collected()
        with session.timed("update"):
            metrics = algorithm.update(rollout, session.controls(), session.streams["update"])
        session.advance(rollout.transitions, metrics)
