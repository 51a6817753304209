"""Parameters of deep Q-learning and its extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Interval

from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.recurrent_params import ReplayedMemoryParams
from rl_training.algorithms.params.replay_params import ReplayParams
from rl_training.experiment.configuration.fork_rules import EXPLORATION, FREE, NETWORKS, REPLAY, rules, scheduled
from rl_training.experiment.schedules import Schedule, ScheduleSpec

EPSILON_SCHEDULE = Schedule(type="linear", end=0.05, duration=0.1)
BETA_SCHEDULE = Schedule(type="linear", end=1.0)


@dataclass(frozen=True)
class DQNParams(ReplayParams):
    """Parameters of deep Q-learning."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("epsilon", "per_beta"),
        **rules(FREE, "target_update_interval", "tau", "loss", "max_grad_norm", "double", "optimizer_eps"),
        **rules(EXPLORATION, "repeat_exponent", "repeat_limit"),
        **rules(REPLAY, "prioritized", "per_alpha"),
        **rules(NETWORKS, "dueling", "noisy", "distribution", "num_atoms", "v_min", "v_max", "num_quantiles"),
        **rules(NETWORKS, "hidden_sizes", "activation", "recurrent"),
    }

    learning_rate: Annotated[float, Gt(0)] = 1e-4
    """Step size of the optimizer."""
    buffer_size: Annotated[int, Ge(1)] = 100_000
    """Capacity of the replay in transitions."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Transitions per gradient step; with a memory, sequences."""
    train_interval: Annotated[int, Ge(1)] = 4
    """Environment steps between rounds of gradient steps."""
    epsilon: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Probability of a random action."""
    epsilon_schedule: ScheduleSpec | None = EPSILON_SCHEDULE
    """How epsilon changes over the run; it starts at the fixed value."""
    epsilon_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which epsilon rises linearly from 0."""
    repeat_exponent: Annotated[float, Gt(0)] | None = None
    """Random actions last n steps with a probability proportional to n ** -repeat_exponent; null: one step."""
    repeat_limit: Annotated[int, Ge(1)] = 10_000
    """Largest number of steps for which a random action is repeated."""
    target_update_interval: Annotated[int, Ge(1)] = 1_000
    """Environment steps between updates of the target network."""
    tau: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Fraction by which the target network moves towards the network at each update; 1 copies it."""
    loss: Literal["huber", "squared"] = "huber"
    """Loss of the temporal-difference error; used if values are not distributions."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """The gradient over all parameters is clipped to this norm; null switches clipping off."""
    double: bool = False
    """Select the next state's action with the online network (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Split the network into a state value and advantages (Wang et al. 2016)."""
    prioritized: bool = False
    """Sample transitions in proportion to their latest temporal-difference error."""
    per_alpha: Annotated[float, Interval(ge=0, le=1)] = 0.6
    """Exponent of the priorities: 0 samples uniformly."""
    per_beta: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Exponent of the importance weights that correct for prioritised sampling."""
    per_beta_schedule: ScheduleSpec | None = BETA_SCHEDULE
    """How per_beta changes over the run."""
    per_beta_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which per_beta rises linearly from 0."""
    noisy: bool = False
    """Explore with learned noise on the weights; epsilon is then usually 0."""
    distribution: Literal["none", "categorical", "quantile"] = "none"
    """How a value is represented: a number, a categorical distribution (C51) or a set of quantiles (QR-DQN)."""
    num_atoms: Annotated[int, Ge(2)] = 51
    """Categorical: number of atoms of the support."""
    v_min: float = -10.0
    """Categorical: lower end of the support."""
    v_max: float = 10.0
    """Categorical: upper end of the support."""
    num_quantiles: Annotated[int, Ge(1)] = 50
    """Quantile: number of quantiles per action."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = None
    """Widths of the hidden layers; null: [64, 64], or none after an encoder with weights or recurrent layers."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""
    recurrent: ReplayedMemoryParams | None = None
    """Give the policy a memory (R2D2): a recurrent layer's type, size, layers, sequence_length, chrono_init and
    burn_in; null: no memory."""

    @property
    def stored_steps(self) -> int:
        """Steps that a stored transition spans; sequences are stored step by step."""
        return self.n_step if self.recurrent is None else 1

    @property
    def controls(self) -> tuple[str, ...]:
        """The scheduled scalars in use."""
        epsilon = ("epsilon",) if self.epsilon > 0 or self.epsilon_schedule is not None else ()
        return ("learning_rate", *epsilon, *(("per_beta",) if self.prioritized else ()))

    @property
    def outputs_per_action(self) -> int:
        """Network outputs per action: 1 for a value, the number of atoms or quantiles for a distribution."""
        return {"none": 1, "categorical": self.num_atoms, "quantile": self.num_quantiles}[self.distribution]

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        memory = 0
        if self.recurrent is not None:
            memory, inputs = self.recurrent.weights(inputs), self.recurrent.size
        means = dense_weights(inputs, *(self.hidden_sizes or ()), outputs * self.outputs_per_action)
        return memory + (2 * means if self.noisy else means)

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        if self.v_min >= self.v_max:
            found.append("algo_kwargs.v_min: must lie below v_max; lower it or raise v_max")
        if self.loss == "squared" and self.distribution != "none":
            found.append("algo_kwargs.loss: has no meaning for a distribution; leave it at huber")
        if self.repeat_exponent is not None and "epsilon" not in self.controls:
            found.append(
                "algo_kwargs.repeat_exponent: there is no random action to repeat; raise epsilon or leave it null"
            )
        return found + ([] if self.recurrent is None else self._memory_problems(self.recurrent))

    def _memory_problems(self, recurrent: ReplayedMemoryParams) -> list[str]:
        """Return an error message for each value that does not go with a memory."""
        found = []
        if self.hindsight != "none":
            found.append(
                "algo_kwargs.hindsight: a stored memory has seen the goal that hindsight would replace; set it to "
                "none, or leave recurrent out"
            )
        if self.dataset_fraction:
            found.append(
                "algo_kwargs.dataset_fraction: a dataset has no memories to begin its sequences with; set it to 0, or "
                "leave recurrent out"
            )
        if recurrent.sequence_length + recurrent.burn_in > self.buffer_size:
            found.append(
                f"algo_kwargs.recurrent: sequences of {recurrent.sequence_length} steps after {recurrent.burn_in} of "
                "burn-in are longer than the replay; shorten them or raise buffer_size"
            )
        return found


@dataclass(frozen=True)
class DoubleDQNParams(DQNParams):
    """Parameters of double DQN."""

    double: bool = True
    """Select the next state's action with the online network (van Hasselt et al. 2016)."""


@dataclass(frozen=True)
class C51Params(DQNParams):
    """Parameters of C51."""

    distribution: Literal["none", "categorical", "quantile"] = "categorical"
    """How a value is represented: a number, a categorical distribution (C51) or a set of quantiles (QR-DQN)."""


@dataclass(frozen=True)
class QRDQNParams(DQNParams):
    """Parameters of QR-DQN."""

    distribution: Literal["none", "categorical", "quantile"] = "quantile"
    """How a value is represented: a number, a categorical distribution (C51) or a set of quantiles (QR-DQN)."""


@dataclass(frozen=True)
class RainbowParams(DQNParams):
    """Parameters of Rainbow: all six extensions."""

    double: bool = True
    """Select the next state's action with the online network (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Split the network into a state value and advantages (Wang et al. 2016)."""
    n_step: Annotated[int, Ge(1)] = 3
    """Number of rewards summed before the value of the next state is used."""
    prioritized: bool = True
    """Sample transitions in proportion to their latest temporal-difference error."""
    per_alpha: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Exponent of the priorities: 0 samples uniformly."""
    noisy: bool = True
    """Explore with learned noise on the weights; epsilon is then usually 0."""
    epsilon: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability of a random action."""
    epsilon_schedule: ScheduleSpec | None = None
    """How epsilon changes over the run; it starts at the fixed value."""
    distribution: Literal["none", "categorical", "quantile"] = "categorical"
    """How a value is represented: a number, a categorical distribution (C51) or a set of quantiles (QR-DQN)."""
    optimizer_eps: Annotated[float, Gt(0)] = 1.5e-4
    """Adam's epsilon."""
