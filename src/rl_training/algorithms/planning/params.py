"""Parameters of every planning algorithm: search, training windows, optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Interval

from rl_training.algorithms.params.replay_params import ExperienceParams
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, REPLAY, rules, scheduled
from rl_training.experiment.schedules import (
    DEFAULT_EXPONENTIAL_RATIO,
    DEFAULT_FACTOR,
    DEFAULT_MILESTONES,
    Schedule,
    ScheduleSpec,
    as_schedule,
)

BETA_SCHEDULE = Schedule(type="linear", end=1.0)
TEMPERATURE_SCHEDULE = Schedule(type="step", milestones=(0.5, 0.75), values=(0.5, 0.25))


@dataclass(frozen=True)
class PlanningParams(ExperienceParams):
    """Parameters of the planning family."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("num_simulations", "temperature", "root_exploration_fraction", "gumbel_scale", "per_beta"),
        **rules(FREE, "replay_ratio", "dirichlet_alpha", "value_normalization", "smallest_value_range"),
        **rules(FREE, "max_considered_actions", "unroll_steps", "reanalyze_ratio", "target_update_interval"),
        **rules(FREE, "shrink_n_step", "augmentation", "value_coef", "reward_coef", "max_grad_norm", "optimizer_eps"),
        **rules(REPLAY, "search", "n_step", "per_alpha"),
        **rules(NETWORKS, "hidden_size", "support_size"),
    }

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Step size of the optimizer."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.997
    """Discount factor."""
    buffer_size: Annotated[int, Ge(1)] = 100_000
    """Capacity of the replay in steps."""
    batch_size: Annotated[int, Ge(1)] = 256
    """Windows of experience per gradient step."""
    replay_ratio: Annotated[float, Gt(0)] = 0.25
    """Gradient steps per environment step."""
    search: Literal["puct", "gumbel"] = "puct"
    """Selection rule: PUCT, by prior and visits (MuZero), or sequential halving (Gumbel MuZero)."""
    num_simulations: Annotated[int, Ge(1)] = 25
    """Simulations per search."""
    num_simulations_schedule: ScheduleSpec | None = None
    """How the number of simulations changes over the run; it starts at the fixed value and is at least 1."""
    num_simulations_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the number of simulations rises from 1."""
    temperature: Annotated[float, Ge(0)] = 1.0
    """PUCT: training samples actions in proportion to visits ** (1 / temperature); 0: the most visited action."""
    temperature_schedule: ScheduleSpec | None = TEMPERATURE_SCHEDULE
    """How the temperature changes over the run."""
    temperature_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the temperature rises linearly from 0."""
    root_exploration_fraction: Annotated[float, Interval(ge=0, le=1)] = 0.25
    """PUCT: fraction of Dirichlet noise in the root's prior in training."""
    root_exploration_fraction_schedule: ScheduleSpec | None = None
    """How that fraction changes over the run."""
    root_exploration_fraction_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which that fraction rises linearly from 0."""
    dirichlet_alpha: Annotated[float, Gt(0)] = 0.3
    """PUCT: concentration of the Dirichlet noise; small values favour few actions."""
    value_normalization: Literal["node", "tree"] = "node"
    """PUCT: normalise values by their range at the node or in the whole tree."""
    smallest_value_range: Annotated[float, Gt(0)] = 1e-8
    """The search normalises values to [0, 1] by their range, which is taken to be at least this wide."""
    max_considered_actions: Annotated[int, Ge(1)] = 16
    """Gumbel: largest number of actions considered at the root."""
    gumbel_scale: Annotated[float, Ge(0)] = 1.0
    """Gumbel: factor of the noise at the root when acting in training; 0: none. Reanalysis keeps the whole noise."""
    gumbel_scale_schedule: ScheduleSpec | None = None
    """How that factor changes over the run."""
    gumbel_scale_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which that factor rises linearly from 0."""
    unroll_steps: Annotated[int, Ge(1)] = 5
    """Steps for which the model is unrolled in training."""
    n_step: Annotated[int, Ge(1)] = 5
    """Number of rewards summed before the target network's value is used."""
    per_alpha: Annotated[float, Interval(ge=0, le=1)] = 0.6
    """Exponent of the priorities (errors of the searched values) when windows are sampled: 0 samples uniformly."""
    per_beta: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Exponent of the importance weights that correct for prioritised sampling."""
    per_beta_schedule: ScheduleSpec | None = BETA_SCHEDULE
    """How per_beta changes over the run."""
    per_beta_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which per_beta rises linearly from 0."""
    reanalyze_ratio: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Fraction of each batch whose policies are recomputed by a new search with the target network."""
    target_update_interval: Annotated[int, Ge(1)] = 400
    """Environment steps between copies of the network to the target network."""
    shrink_n_step: bool = False
    """Sum fewer rewards for older steps (EfficientZero)."""
    augmentation: Literal["none", "shift"] = "none"
    """Images: randomly shift them by up to four pixels (one if smaller than 36x36) in training batches."""
    value_coef: Annotated[float, Ge(0)] = 0.25
    """Weight of the value loss."""
    reward_coef: Annotated[float, Ge(0)] = 1.0
    """Weight of the reward loss."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """The gradient over all parameters is clipped to this norm; null switches clipping off."""
    hidden_size: Annotated[int, Ge(1)] = 64
    """Width of the hidden layers."""
    support_size: Annotated[int, Ge(1)] = 50
    """Values and rewards are distributions over the integers -S to S after a transform; 50 reaches about 2400."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""

    @property
    def controls(self) -> tuple[str, ...]:
        """The scheduled scalars in use."""
        exploring = ("temperature", "root_exploration_fraction") if self.search == "puct" else ("gumbel_scale",)
        return ("learning_rate", "num_simulations", *exploring, *(("per_beta",) if self.by_priority else ()))

    @property
    def by_priority(self) -> bool:
        """Whether the replay samples by priority."""
        return self.per_alpha > 0

    @property
    def with_search(self) -> bool:
        """Whether the replay stores search results."""
        return True

    @property
    def latent_numbers(self) -> int:
        """Numbers per state that the search stores as embedding."""
        return 0

    @property
    def most_simulations(self) -> int:
        """The largest number of simulations that the schedule reaches."""
        if self.num_simulations_schedule is None:
            return self.num_simulations
        schedule = as_schedule(self.num_simulations_schedule)
        start = self.num_simulations if schedule.start is None else schedule.start
        jumps = len(schedule.milestones or DEFAULT_MILESTONES) if schedule.factor is not None else 0
        points = [value for _, value in schedule.points or ()]
        values = [*points, *(schedule.values or ()), start * (schedule.factor or 1.0) ** jumps, schedule.end or 0.0]
        return int(max(self.num_simulations, start, *values))

    @property
    def discount(self) -> float:
        """Factor of the next state's value."""
        return self.gamma

    @property
    def prefix_horizon(self) -> int | None:
        """Steps over which the model sums rewards; None if it predicts single rewards."""
        return None

    @property
    def with_successors(self) -> bool:
        """Whether batches include the observations after each step."""
        return False

    @property
    def absorbing_ends(self) -> bool:
        """Whether a terminal state is absorbing: it is repeated after the end of the episode."""
        return False

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        window = (self.unroll_steps + self.n_step) * num_envs
        if window > self.buffer_size:
            found.append(
                f"algo_kwargs.buffer_size: a window of unroll_steps and n_step over {num_envs} environments needs "
                f"{window} steps; raise buffer_size or lower unroll_steps or n_step"
            )
        schedule = None if self.num_simulations_schedule is None else as_schedule(self.num_simulations_schedule)
        if schedule is not None and (lowest := _lowest(schedule, self.num_simulations)) < 1:
            found.append(
                f"algo_kwargs.num_simulations_schedule: goes down to {lowest:g}, but a search needs at least 1 "
                "simulation; set or raise its end, factor, values or points"
            )
        return found


def _lowest(schedule: Schedule, fixed: float) -> float:
    """Return the smallest value that a schedule reaches; unspecified ends are those of `runtime.controls`."""
    start = fixed if schedule.start is None else schedule.start
    if schedule.type == "piecewise":
        return min(value for _, value in schedule.points or ((0, start),))
    if schedule.type == "step":
        if schedule.values is not None:
            return min((start, *schedule.values))
        jumps = len(schedule.milestones or DEFAULT_MILESTONES)
        return min(start, start * (DEFAULT_FACTOR if schedule.factor is None else schedule.factor) ** jumps)
    if schedule.type == "constant":
        return start
    end = schedule.end
    if end is None:
        end = start * DEFAULT_EXPONENTIAL_RATIO if schedule.type == "exponential" else 0.0
    return min(start, end)
