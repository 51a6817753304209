"""The parameters that every on-policy algorithm has."""

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
    """What the on-policy loop and an `ActorCritic` need; a subclass adds fields and says in `on_fork` how they fork."""

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
    """How the learning rate changes over the run; the fixed value is its start."""
    learning_rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the learning rate rises linearly from 0."""
    num_steps: Annotated[int, Ge(1)] = 2048
    """Steps each environment makes per rollout; a rollout holds num_steps * num_envs transitions."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 0.5
    """Largest norm of the gradient over all parameters; null switches clipping off."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = None
    """Widths of the hidden layers of actor and critic; null takes [64, 64], or none after an encoder with weights."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "tanh"
    """Non-linearity of the hidden layers."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return how many weights are trained at least, for so many input features and action outputs."""
        hidden = self.hidden_sizes or ()
        return dense_weights(inputs, *hidden, outputs) + dense_weights(inputs, *hidden, 1)

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return the repairs for values that do not fit together, each as `<field>: sentence`."""
        return self.encoder_problems()
