"""Parameters of every algorithm with a replay."""

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
    """How experience is stored, and when learning begins."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}
    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("learning_rate"),
        **rules(FREE, "memory_map", "learning_starts", "batch_size"),
        **rules(REPLAY, "gamma", "buffer_size"),  # rows contain discounts, or values that a search discounted
    }

    learning_rate: Annotated[float, Gt(0)] = 3e-4
    """Step size of the optimizers."""
    learning_rate_schedule: ScheduleSpec | None = None
    """How the learning rate changes over the run; it starts at the fixed value."""
    learning_rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the learning rate rises linearly from 0."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor."""
    buffer_size: Annotated[int, Ge(1)] = 1_000_000
    """Capacity of the replay in transitions."""
    memory_map: bool = False
    """Keep the replay in unnamed files in the run directory instead of in memory; they vanish with the process."""
    learning_starts: Annotated[int, Ge(0)] = 1_000
    """Environment steps before learning begins; if they are fewer than a batch, transitions are repeated."""
    batch_size: Annotated[int, Ge(1)] = 256
    """Transitions per gradient step."""

    @property
    def controls(self) -> tuple[str, ...]:
        """The scheduled scalars in use."""
        return ("learning_rate",)

    @property
    def stored_steps(self) -> int:
        """Steps that a stored transition spans; the latest steps are held back until their transition is complete."""
        return 1

    @property
    def by_priority(self) -> bool:
        """Whether the replay samples by priority."""
        return False

    @property
    def with_search(self) -> bool:
        """Whether the replay stores search results."""
        return False

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        return 0

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
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
    """Parameters of algorithms that learn from single transitions: how often, and how transitions are computed."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "train_interval", "gradient_steps", "hindsight_ratio", "dataset_fraction"),
        **rules(REPLAY, "n_step", "hindsight"),
    }

    learning_starts: Annotated[int, Ge(0)] = 1_000
    """Environment steps with random actions before learning begins; a larger batch repeats transitions."""
    train_interval: Annotated[int, Ge(1)] = 1
    """Environment steps between rounds of gradient steps."""
    gradient_steps: Annotated[int, Ge(-1)] = 1
    """Gradient steps per round; -1: as many as environment steps since the last round."""
    n_step: Annotated[int, Ge(1)] = 1
    """Number of rewards summed before the value of the next state is used."""
    hindsight: Literal["none", "future", "final", "episode"] = "none"
    """Goal-conditioned tasks: also learn from goals that the episode reached later, at its end or at any time."""
    hindsight_ratio: Annotated[float, Interval(ge=0, le=1)] = 0.8
    """Fraction of a batch whose goals are replaced."""
    dataset_fraction: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Fraction of each batch that is drawn from the configuration's `dataset` instead of the replay (RLPD uses 0.5)."""

    @property
    def stored_steps(self) -> int:
        """Steps that a stored transition spans; the latest steps are held back until their transition is complete."""
        return self.n_step

    @property
    def dataset_rows(self) -> int:
        """Transitions of each batch that are drawn from the dataset."""
        return round(self.dataset_fraction * self.batch_size)

    @property
    def updates_per_round(self) -> int:
        """Gradient steps after every `train_interval` environment steps."""
        return self.train_interval if self.gradient_steps == -1 else self.gradient_steps

    @property
    def by_priority(self) -> bool:
        """Whether the replay samples by priority."""
        return bool(getattr(self, "prioritized", False))

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        found += self.encoder_problems()
        if self.gradient_steps == 0:
            found.append(
                "algo_kwargs.gradient_steps: 0 would never learn; raise it, or use -1 for as many as environment steps"
            )
        if self.n_step > self.buffer_size:
            found.append("algo_kwargs.n_step: is longer than the replay; lower it or raise buffer_size")
        if self.hindsight != "none" and self.n_step != 1:
            found.append("algo_kwargs.n_step: hindsight recomputes the reward of single steps; set n_step to 1")
        if self.hindsight != "none" and self.by_priority:
            found.append("algo_kwargs.prioritized: priorities do not fit replaced goals; set prioritized to false")
        return found + self._dataset_problems()

    def _dataset_problems(self) -> list[str]:
        """Return an error message for each value that does not allow batches mixed with a dataset."""
        if not self.dataset_fraction:
            return []
        found = []
        if not 0 < self.dataset_rows < self.batch_size:
            found.append(
                f"algo_kwargs.dataset_fraction: {self.dataset_fraction} of a batch of {self.batch_size} leaves no "
                "transition of one kind; change it or raise batch_size"
            )
        if self.n_step != 1:
            found.append("algo_kwargs.n_step: a dataset is mixed in as single steps; set n_step to 1")
        if self.by_priority:
            found.append("algo_kwargs.prioritized: a dataset has no priorities; set prioritized to false")
        if self.hindsight != "none":
            found.append("algo_kwargs.hindsight: a dataset's goals are not replaced; set hindsight to none")
        return found
