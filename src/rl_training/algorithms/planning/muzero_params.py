"""Parameters of MuZero; its variants change their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from rl_training.algorithms.params.encoder_params import EncoderParams
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.planning.grid_params import GridParams
from rl_training.algorithms.planning.params import PlanningParams
from rl_training.experiment.configuration.fork_rules import NETWORKS, REPLAY, rules


@dataclass(frozen=True)
class MuZeroParams(EncoderParams, PlanningParams):
    """Parameters of MuZero."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(REPLAY, "two_player"),
        **rules(NETWORKS, "value_prefix", "value_prefix_horizon", "consistency_coef", "latent_size", "grid"),
    }

    two_player: bool = False
    """Two players take turns in a zero-sum game: values change their sign with every move."""
    value_prefix: bool = False
    """Predict sums of rewards by a recurrent cell instead of single rewards (EfficientZero)."""
    value_prefix_horizon: Annotated[int, Ge(1)] = 5
    """Steps after which the recurrent cell is reset."""
    consistency_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the similarity between predicted and encoded latents (EfficientZero)."""
    latent_size: Annotated[int, Ge(1)] = 64
    """Width of the latent state."""
    grid: GridParams | None = None
    """Boards: a network of convolutions whose latents are planes over the cells; the `shape` that observations list,
    `filters` and `blocks`. It takes the place of `latent_size`; null: perceptrons."""

    @property
    def discount(self) -> float:
        """Factor of the next state's value, negative if that is the other player's."""
        return -self.gamma if self.two_player else self.gamma

    @property
    def prefix_horizon(self) -> int | None:
        """Steps over which the model sums rewards; None if it predicts single rewards."""
        return self.value_prefix_horizon if self.value_prefix else None

    @property
    def with_successors(self) -> bool:
        """Whether batches include the observations after each step."""
        return self.consistency_coef > 0

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        latent, hidden = self.latent_size, self.hidden_size
        if self.grid is not None:
            return self.grid.weights(hidden, outputs, 2 * self.support_size + 1)
        model = dense_weights(inputs, hidden, latent) + dense_weights(latent, hidden, latent)
        heads = 2 * dense_weights(latent, hidden) + dense_weights(hidden, outputs + 2 * (2 * self.support_size + 1))
        prefix = 4 * hidden * (latent + hidden + 2) if self.value_prefix else 0
        projections = 2 * dense_weights(latent, latent, latent) if self.with_successors else 0
        return model + heads + prefix + projections

    @property
    def latent_numbers(self) -> int:
        """Numbers per state that the search stores as embedding."""
        return self.latent_size if self.grid is None else self.grid.latent_size

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        found += self.encoder_problems()
        if self.value_prefix and self.value_prefix_horizon > self.unroll_steps:
            found.append(
                f"algo_kwargs.value_prefix_horizon: {self.value_prefix_horizon} steps are never seen together in "
                f"training, which unrolls {self.unroll_steps}; lower it or raise unroll_steps"
            )
        if self.two_player and self.value_prefix:
            found.append(
                "algo_kwargs.value_prefix: sums the rewards of one player; set it to false where two take turns"
            )
        if self.grid is not None and (self.value_prefix or self.consistency_coef > 0 or self.encoder is not None):
            found.append(
                "algo_kwargs.grid: goes without value_prefix, consistency_coef and encoder, which belong to networks "
                "of perceptrons; leave them out, or grid"
            )
        return found
