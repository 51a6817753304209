"""Parameters of soft actor-critic and its relatives TQC, CrossQ, REDQ and DroQ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Interval

from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.replay_params import ReplayParams
from rl_training.experiment.configuration.fork_rules import EXPLORATION, FREE, NETWORKS, START, rules


@dataclass(frozen=True)
class SACParams(ReplayParams):
    """Parameters of soft actor-critic."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "tau", "temperature", "target_entropy", "policy_delay", "dropped_quantiles", "renorm_warmup"),
        **rules(FREE, "max_grad_norm", "optimizer_eps", "optimizer_beta1", "target_critics", "policy_value"),
        **rules(START, "temperature_init", "log_std_init"),
        **rules(EXPLORATION, "sde_sample_freq"),
        **rules(NETWORKS, "target_network", "num_critics", "num_quantiles", "use_sde", "batch_norm"),
        **rules(NETWORKS, "hidden_sizes", "critic_hidden_sizes", "activation"),
        **rules(NETWORKS, "critic_layer_norm", "critic_dropout"),
    }

    tau: Annotated[float, Interval(gt=0, le=1)] = 0.005
    """Fraction by which the target critics move towards the critics at each update."""
    temperature: Annotated[float, Gt(0)] | Literal["auto"] = "auto"
    """Weight of the entropy: a fixed value, or learned to keep the target entropy."""
    temperature_init: Annotated[float, Gt(0)] = 1.0
    """Initial value of a learned temperature."""
    target_entropy: float | Literal["auto"] = "auto"
    """Target entropy of a learned temperature; auto: minus the number of action dimensions."""
    target_network: bool = True
    """Bootstrap from target critics; if false, from the critics themselves."""
    policy_delay: Annotated[int, Ge(1)] = 1
    """Updates of the critics per update of actor and temperature."""
    num_critics: Annotated[int, Ge(1)] = 2
    """Number of critics; the smallest of their values is used."""
    target_critics: Annotated[int, Ge(1)] | None = None
    """Number of critics, drawn anew at each update, whose smallest value is the target (REDQ); null: all of them."""
    policy_value: Literal["min", "mean"] = "min"
    """Which of the critics' values the actor ascends, the smallest or the mean; with quantiles it is the mean."""
    num_quantiles: Annotated[int, Ge(1)] = 1
    """Quantiles per critic; more than one makes truncated quantile critics (TQC)."""
    dropped_quantiles: Annotated[int, Ge(0)] = 0
    """Number of largest quantiles, per critic, that are dropped from the target."""
    use_sde: bool = False
    """Explore with generalised state-dependent noise (Raffin et al. 2020)."""
    sde_sample_freq: Annotated[int, Ge(-1)] = 8
    """Steps between fresh exploration matrices; -1 draws them after each round of gradient steps."""
    log_std_init: float = -3.0
    """gSDE: initial log standard deviation."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    critic_hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = None
    """Widths of the critics' hidden layers; null: the same as hidden_sizes."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    critic_layer_norm: bool = False
    """Normalise the critics' hidden layers (LayerNorm), which limits values of actions that no data supports."""
    critic_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Probability of dropping a unit of the critics' hidden layers in updates (DroQ), before their LayerNorm."""
    batch_norm: bool = False
    """Use batch renormalisation in actor and critics (CrossQ); needs target_network false."""
    renorm_warmup: Annotated[int, Ge(0)] = 100_000
    """With batch_norm: updates with plain batch normalisation before the running statistics are used."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Gradients are clipped to this norm; null switches clipping off."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""
    optimizer_beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """Adam's beta1 for actor and critics: the decay rate of the mean gradient."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        critic_hidden = self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes
        critics = self.num_critics * dense_weights(inputs + outputs, *critic_hidden, self.num_quantiles)
        return dense_weights(inputs, *self.hidden_sizes, outputs) + critics

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        if self.sde_sample_freq == 0:
            found.append("algo_kwargs.sde_sample_freq: 0 steps are not possible; use -1 for once per round of updates")
        if self.dropped_quantiles >= self.num_quantiles:
            found.append("algo_kwargs.dropped_quantiles: must be less than num_quantiles; lower it")
        if self.batch_norm and self.target_network:
            found.append(
                "algo_kwargs.batch_norm: needs the next states in the same batch, which target networks do not allow; "
                "set target_network to false"
            )
        if self.batch_norm and self.critic_layer_norm:
            found.append("algo_kwargs.critic_layer_norm: the critics are normalised by batch_norm; choose one of them")
        if self.batch_norm and self.critic_dropout:
            found.append("algo_kwargs.critic_dropout: batch_norm leaves no room for it; set one of them to its default")
        if self.target_critics is not None and self.target_critics > self.num_critics:
            found.append(
                f"algo_kwargs.target_critics: {self.target_critics} of {self.num_critics} critics cannot be drawn; "
                "lower it or raise num_critics"
            )
        if self.batch_norm and self.batch_size < 2:
            found.append("algo_kwargs.batch_size: batch_norm needs at least 2 transitions; raise it")
        return found


@dataclass(frozen=True)
class TQCParams(SACParams):
    """Parameters of truncated quantile critics."""

    num_quantiles: Annotated[int, Ge(1)] = 25
    """Quantiles per critic; more than one makes truncated quantile critics (TQC)."""
    dropped_quantiles: Annotated[int, Ge(0)] = 2
    """Number of largest quantiles, per critic, that are dropped from the target."""


@dataclass(frozen=True)
class CrossQParams(SACParams):
    """Parameters of CrossQ."""

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Step size of the optimizers."""
    target_network: bool = False
    """Bootstrap from target critics; if false, from the critics themselves."""
    policy_delay: Annotated[int, Ge(1)] = 3
    """Updates of the critics per update of actor and temperature."""
    critic_hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = (1024, 1024)
    """Widths of the critics' hidden layers; null: the same as hidden_sizes."""
    batch_norm: bool = True
    """Use batch renormalisation in actor and critics (CrossQ); needs target_network false."""
    optimizer_beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.5
    """Adam's beta1 for actor and critics: the decay rate of the mean gradient."""


@dataclass(frozen=True)
class REDQParams(SACParams):
    """Parameters of REDQ."""

    gradient_steps: Annotated[int, Ge(-1)] = 20
    """Gradient steps per round; -1: as many as environment steps since the last round."""
    policy_delay: Annotated[int, Ge(1)] = 20
    """Updates of the critics per update of actor and temperature."""
    num_critics: Annotated[int, Ge(1)] = 10
    """Number of critics."""
    target_critics: Annotated[int, Ge(1)] | None = 2
    """Number of critics, drawn anew at each update, whose smallest value is the target (REDQ); null: all of them."""
    policy_value: Literal["min", "mean"] = "mean"
    """Which of the critics' values the actor ascends, the smallest or the mean; with quantiles it is the mean."""


@dataclass(frozen=True)
class DroQParams(SACParams):
    """Parameters of DroQ."""

    gradient_steps: Annotated[int, Ge(-1)] = 20
    """Gradient steps per round; -1: as many as environment steps since the last round."""
    policy_delay: Annotated[int, Ge(1)] = 20
    """Updates of the critics per update of actor and temperature."""
    policy_value: Literal["min", "mean"] = "mean"
    """Which of the critics' values the actor ascends, the smallest or the mean; with quantiles it is the mean."""
    critic_layer_norm: bool = True
    """Normalise the critics' hidden layers (LayerNorm), which limits values of actions that no data supports."""
    critic_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.01
    """Probability of dropping a unit of the critics' hidden layers in updates (DroQ), before their LayerNorm."""
