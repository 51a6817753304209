"""Decides, once per run or policy, whether a kernel replaces parts of the algorithm's own code."""

from __future__ import annotations

import logging
import math
from typing import Any

from rl_training.experiment.config import TrainConfig

logger = logging.getLogger("rl_training")


def accelerate(algorithm: Any, mode: str, updates: float | None = None) -> dict[str, str | None]:
    """Attach the kernel that knows the algorithm, if there is one; return its name and why it does not do more.

    `updates` is about how many gradient steps the run takes, None where that is not known.
    """
    if mode == "off":
        return {"kernel": None, "reason": "switched off"}
    try:
        from rl_training.kernels.door import attach
    except ImportError as error:
        return {"kernel": None, "reason": f"rl_training.kernels cannot be imported ({error})"}
    attached = attach(algorithm, updates)
    return {"kernel": attached.kernel, "reason": attached.reason}


def accelerate_collecting(collector: Any, mode: str) -> str | None:
    """Attach the kernel that knows a collector of rollouts and its environments, if there is one; return its name."""
    if mode == "off":
        return None
    try:
        from rl_training.kernels.door import attach_collecting
    except ImportError:  # said when the algorithm was made
        return None
    return attach_collecting(collector).kernel


def prepare_kernels() -> None:
    """Import what compiled kernels need; processes forked from this one find it ready."""
    from rl_training.kernels.door import prepare_compiled

    prepare_compiled()


def log_acceleration(found: dict[str, str | None]) -> None:
    """Log which kernel accelerates the run, or why none does."""
    if found["kernel"] is not None:
        reason = "" if found["reason"] is None else f"; {found['reason']}"
        logger.info("acceleration: the kernel `%s`%s", found["kernel"], reason)
    else:
        logger.info("acceleration: none, %s", found["reason"])


def planned_updates(config: TrainConfig, params: Any, loop: str) -> float:
    """Return about how many gradient steps a configuration asks for."""
    steps = config.total_timesteps
    if loop == "on_policy":
        rollout = params.num_steps * config.num_envs
        minibatch = getattr(params, "minibatch_size", None) or rollout
        return steps / rollout * getattr(params, "update_epochs", 1) * math.ceil(rollout / minibatch)
    if loop == "offline":
        return steps
    if loop == "off_policy":
        return max(steps - params.learning_starts, 0) / params.train_interval * params.updates_per_round
    return max(steps - params.learning_starts, 0) * params.replay_ratio
