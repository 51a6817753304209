"""The environments of a run with samplers, as the run itself sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from gymnasium import Space

from rl_training.envs.normalize import Normalizers
from rl_training.envs.slot import EnvFactory


class Closable(Protocol):
    """Something to be closed at the end of a run."""

    def close(self) -> None:
        """Release everything; may be called twice."""


@dataclass
class SampledEnvironments:
    """Environments that exist only in the samplers of a run."""

    factory: EnvFactory
    num_envs: int
    observation_space: Space[Any]
    action_space: Space[Any]
    normalizers: Normalizers
    timeout: float
    """Seconds without progress after which a sampler counts as stuck."""
    pool: Closable | None = field(default=None, init=False)
    """The samplers, once there are any."""

    @property
    def seen_space(self) -> Space[Any]:
        """The observation space of the algorithm, after normalisation if it is configured."""
        observation = self.normalizers.observation
        return self.observation_space if observation is None else observation.normalized_space

    def close(self) -> None:
        """End the samplers."""
        if self.pool is not None:
            self.pool.close()
