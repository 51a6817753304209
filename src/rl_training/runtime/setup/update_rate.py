"""Messages about the updates of a run with a replay: their rate, and that the first batches repeat transitions."""

from __future__ import annotations

import logging

from rl_training.runtime.session import TrainingSession

logger = logging.getLogger("rl_training")


def log_update_rate(per_step: float, num_envs: int, *, repair: str) -> None:
    """Log the number of updates per environment step: many environments make many updates at once."""
    rate = f"{per_step:g} update{'' if per_step == 1 else 's'} per environment step"
    together = f", {per_step * num_envs:g} each time all {num_envs} environments step; {repair}"
    logger.info("%s%s", rate, together if num_envs > 1 else "")


def warn_of_small_replay(session: TrainingSession, size: int, batch_size: int) -> None:
    """Report before the first update that the batch is larger than the replay, which has `size` transitions."""
    if session.update_count == 0 and size < batch_size:
        session.notify(
            f"the replay holds {size} transitions at the first update, fewer than a batch of {batch_size}: "
            "batches repeat them until there are more; raise algo_kwargs.learning_starts to begin later",
        )
