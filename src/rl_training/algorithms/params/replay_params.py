"""The parameters that every algorithm with a replay has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Interval

from rl_training.algorithms.params.encoder_params import EncoderParams
from rl_training.experiment.configuration.fork_rules import FREE, REPLAY, rules, scheduled
from rl_training.experiment.schedules import ScheduleSpec


@dataclass(frozen=True)
class ExperienceParams:
    """How experience is kept, and when learning from it begins."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}
    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("learning_rate"),
        **rules(FREE, "memory_map", "learning_starts", "batch_size"),
        **rules(REPLAY, "gamma", "buffer_size"),  # rows hold discounts, or values that a search discounted
    }

    learning_rate: Annotated[float, Gt(0)] = 3e-4
    """Step size of the optimizers."""
    learning_rate_schedule: ScheduleSpec | None = None
    """How the learning rate changes over the run; the fixed value is its start."""
    learning_rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the learning rate rises linearly from 0."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor."""
    buffer_size: Annotated[int, Ge(1)] = 1_000_000
    """Transitions the replay holds."""
    memory_map: bool = False
    """Keep the replay in nameless files where the run is, which vanish with the process, instead of in memory."""
    learning_starts: Annotated[int, Ge(0)] = 1_000
    """Environment steps before learning begins; a batch larger than what they store repeats transitions."""
    batch_size: Annotated[int, Ge(1)] = 256
    """Transitions per gradient step."""

    @property
    def controls(self) -> tuple[str, ...]:
        """The scheduled scalars in use."""
        return ("learning_rate",)

    @property
    def stored_steps(self) -> int:
        """How many steps a stored transition spans; the latest ones are held back until it is complete."""
        return 1

    @property
    def by_priority(self) -> bool:
        """Whether the replay draws by priorities."""
        return False

    @property
    def with_search(self) -> bool:
        """Whether the replay keeps what a search said."""
        return False

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return how many weights are trained at least, for so many input features and action outputs."""
        return 0

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return the repairs for values that do not fit together."""
        found = []
        if self.batch_size > self.buffer_size:
            found.append("algo_kwargs.batch_size: is larger than the replay; lower it or raise buffer_size")
        if self.learning_starts >= total_timesteps:
            found.append(
                f"algo_kwargs.learning_starts: {self.learning_starts} steps before learning leave nothing of "
                f"total_timesteps {total_timesteps}; lower it (--set algo_kwargs.learning_starts="
                f"{total_timesteps // 10}) or train longer"
            )
        return found


@dataclass(frozen=True)
class ReplayParams(EncoderParams, ExperienceParams):
    """How often single transitions are learned from, and what they are made of."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "train_interval", "gradient_steps", "hindsight_ratio"),
        **rules(REPLAY, "n_step", "hindsight"),
    }

    learning_starts: Annotated[int, Ge(0)] = 1_000
    """Environment steps of random actions before learning begins; a larger batch repeats what they store."""
    train_interval: Annotated[int, Ge(1)] = 1
    """Environment steps between rounds of gradient steps."""
    gradient_steps: Annotated[int, Ge(-1)] = 1
    """Gradient steps per round; -1 makes as many as environment steps were taken since the last round."""
    n_step: Annotated[int, Ge(1)] = 1
    """Rewards summed before the value of the successor is used."""
    hindsight: Literal["none", "future", "final", "episode"] = "none"
    """Goal-conditioned tasks: learn also from goals that were reached later, at the end or anywhere in the episode."""
    hindsight_ratio: Annotated[float, Interval(ge=0, le=1)] = 0.8
    """Share of a batch whose goals are replaced."""

    @property
    def stored_steps(self) -> int:
        """How many steps a stored transition spans; the latest ones are held back until it is complete."""
        return self.n_step

    @property
    def updates_per_round(self) -> int:
        """Gradient steps that follow every `train_interval` environment steps."""
        return self.train_interval if self.gradient_steps == -1 else self.gradient_steps

    @property
    def by_priority(self) -> bool:
        """Whether the replay draws by priorities."""
        return bool(getattr(self, "prioritized", False))

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return the repairs for values that do not fit together."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        found += self.encoder_problems()
        if self.gradient_steps == 0:
            found.append(
                "algo_kwargs.gradient_steps: 0 would never learn; raise it, or use -1 for as many as steps were taken"
            )
        if self.n_step > self.buffer_size:
            found.append("algo_kwargs.n_step: is longer than the replay; lower it or raise buffer_size")
        if self.hindsight != "none" and self.n_step != 1:
            found.append("algo_kwargs.n_step: hindsight recomputes the reward of single steps; set n_step to 1")
        if self.hindsight != "none" and self.by_priority:
            found.append("algo_kwargs.prioritized: priorities do not fit replaced goals; set prioritized to false")
        return found
