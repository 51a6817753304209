"""What a run with a replay says of its updates: how many there are, and that the first batches repeat transitions."""

from __future__ import annotations

import logging

from rl_training.runtime.session import TrainingSession

logger = logging.getLogger("rl_training")


def say_update_rate(per_step: float, num_envs: int, *, repair: str) -> None:
    """Log how many updates a run makes: they follow the environment steps, so many environments make many at once."""
    rate = f"{per_step:g} update{'' if per_step == 1 else 's'} per environment step"
    together = f", {per_step * num_envs:g} each time all {num_envs} environments step; {repair}"
    logger.info("%s%s", rate, together if num_envs > 1 else "")


def say_small_replay(session: TrainingSession, size: int, batch_size: int) -> None:
    """Say before the first update of a run that its batch is larger than what is stored, `size` transitions."""
    if session.update_count == 0 and size < batch_size:
        session.say(
            f"the replay holds {size} transitions at the first update, fewer than a batch of {batch_size}: "
            "batches repeat them until there are more; raise algo_kwargs.learning_starts to begin later",
        )
