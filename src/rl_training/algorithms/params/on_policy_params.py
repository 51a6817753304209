"""Parameters of every on-policy algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Interval

from rl_training.algorithms.params.encoder_params import EncoderParams
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, REWARD_STATISTICS, ROLLOUT, rules, scheduled
from rl_training.experiment.schedules import ScheduleSpec


@dataclass(frozen=True)
class OnPolicyParams(EncoderParams):
    """Parameters of the on-policy loop and of an `ActorCritic`; a subclass adds fields and their `on_fork` rules."""

    controls: ClassVar[tuple[str, ...]] = ("learning_rate",)
    """The scheduled scalars; each has the fields `<name>`, `<name>_schedule` and `<name>_warmup_steps`."""
    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("learning_rate"),
        **rules(FREE, "max_grad_norm"),
        **rules(REWARD_STATISTICS, "gamma"),
        **rules(ROLLOUT, "num_steps"),
        **rules(NETWORKS, "hidden_sizes", "activation"),
    }

    learning_rate: Annotated[float, Gt(0)] = 3e-4
    """Step size of the optimizer."""
    learning_rate_schedule: ScheduleSpec | None = None
    """How the learning rate changes over the run; it starts at the fixed value."""
    learning_rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the learning rate rises linearly from 0."""
    num_steps: Annotated[int, Ge(1)] = 2048
    """Steps of each environment per rollout; a rollout holds num_steps * num_envs transitions."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 0.5
    """The gradient over all parameters is clipped to this norm; null switches clipping off."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = None
    """Widths of the hidden layers of actor and critic; null: [64, 64], or none after an encoder with weights."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "tanh"
    """Activation function of the hidden layers."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        hidden = self.hidden_sizes or ()
        return dense_weights(inputs, *hidden, outputs) + dense_weights(inputs, *hidden, 1)

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message, `<field>: sentence`, for each inconsistent combination of values."""
        return self.encoder_problems()
