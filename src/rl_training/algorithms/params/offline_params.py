"""Parameters of every algorithm that learns from a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Interval

from rl_training.algorithms.params.encoder_params import EncoderParams
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, rules, scheduled
from rl_training.experiment.schedules import ScheduleSpec


@dataclass(frozen=True)
class OfflineParams(EncoderParams):
    """Parameters of the offline loop, in which a step is a gradient step; a subclass adds fields and their rules."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("learning_rate"),
        **rules(FREE, "batch_size"),
        **rules(NETWORKS, "normalize_observation"),
    }

    learning_rate: Annotated[float, Gt(0)] = 3e-4
    """Step size of the optimizers."""
    learning_rate_schedule: ScheduleSpec | None = None
    """How the learning rate changes over the run; it starts at the fixed value."""
    learning_rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """Gradient steps over which the learning rate rises linearly from 0."""
    batch_size: Annotated[int, Ge(1)] = 256
    """Transitions per gradient step."""
    normalize_observation: bool = True
    """Normalise observations by the dataset's mean and standard deviation, which become part of the policy."""

    @property
    def controls(self) -> tuple[str, ...]:
        """The scheduled scalars in use."""
        return ("learning_rate",)

    @property
    def top_episodes(self) -> float:
        """Fraction of the dataset's episodes, those with the highest returns, to learn from."""
        return 1.0

    @property
    def with_next_action(self) -> bool:
        """Whether batches contain the dataset's next actions."""
        return False

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        return 0

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        return self.encoder_problems()


@dataclass(frozen=True)
class OfflineValueParams(OfflineParams):
    """Parameters of offline algorithms that learn values, and so from rewards."""

    on_fork: ClassVar[Mapping[str, str]] = rules(FREE, "gamma", "normalize_reward", "reward_scale", "reward_shift")

    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor."""
    normalize_reward: Literal["none", "return_range"] = "none"
    """`return_range` divides rewards by the difference between the highest and lowest return of the dataset's episodes
    and multiplies them by 1000."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this, after they were normalised."""
    reward_shift: float = 0.0
    """This is added to the scaled rewards."""
