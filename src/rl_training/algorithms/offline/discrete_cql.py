"""Conservative Q-learning for discrete actions (Kumar et al. 2020, arXiv 2006.04779) on deep Q-learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from rl_training.algorithms.base import OfflineAlgorithm
from rl_training.algorithms.dqn import DQN, legal_values
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.offline_params import OfflineValueParams
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, rules


@dataclass(frozen=True)
class DiscreteCQLParams(OfflineValueParams):
    """Parameters of discrete conservative Q-learning; those of deep Q-learning have the same meaning there."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "conservative_weight", "target_update_interval", "tau", "loss", "double"),
        **rules(FREE, "max_grad_norm", "optimizer_eps"),
        **rules(NETWORKS, "dueling", "distribution", "num_atoms", "v_min", "v_max", "num_quantiles"),
        **rules(NETWORKS, "hidden_sizes", "activation"),
    }

    # Options of deep Q-learning that concern exploration or a replay.
    noisy: ClassVar[bool] = False
    repeat_exponent: ClassVar[float | None] = None

    learning_rate: Annotated[float, Gt(0)] = 1e-4
    """Step size of the optimizer."""
    conservative_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the penalty in the loss."""
    target_update_interval: Annotated[int, Ge(1)] = 1_000
    """Gradient steps between updates of the target network."""
    tau: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Fraction by which the target network moves towards the network at each update; 1 copies it."""
    loss: Literal["huber", "squared"] = "huber"
    """Loss of the temporal-difference error; used if values are not distributions."""
    double: bool = True
    """Select the next state's action with the online network (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Split the network into a state value and advantages (Wang et al. 2016)."""
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
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """The gradient over all parameters is clipped to this norm; null switches clipping off."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""

    @property
    def outputs_per_action(self) -> int:
        """Network outputs per action: 1 for a value, the number of atoms or quantiles for a distribution."""
        return {"none": 1, "categorical": self.num_atoms, "quantile": self.num_quantiles}[self.distribution]

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        return dense_weights(inputs, *self.hidden_sizes, outputs * self.outputs_per_action)

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        if self.v_min >= self.v_max:
            found.append("algo_kwargs.v_min: must lie below v_max; lower it or raise v_max")
        if self.loss == "squared" and self.distribution != "none":
            found.append("algo_kwargs.loss: has no meaning for a distribution; leave it at huber")
        return found


def discrete_penalty(values: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean log-sum-exp of values [B, actions] over legal actions, minus the value of the actions [B]."""
    chosen = values.gather(1, action.view(-1, 1)).squeeze(1)
    return (torch.logsumexp(legal_values(values, mask), dim=1) - chosen).mean()


class DiscreteCQL(DQN, OfflineAlgorithm):
    """Deep Q-learning whose loss lowers the values of actions that the dataset does not contain."""

    params: DiscreteCQLParams  # type: ignore[assignment]  # has every attribute that DQN reads

    def loss(self, batch: ReplayBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and metrics."""
        loss, metrics = super().loss(batch)
        penalty = discrete_penalty(self.values(batch.observation), batch.action, batch.mask)
        return loss + self.params.conservative_weight * penalty, {**metrics, "loss_conservative": penalty.detach()}
