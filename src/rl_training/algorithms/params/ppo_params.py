"""Parameters of PPO, A2C, APPO and IMPALA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Interval

from rl_training.algorithms.params.on_policy_params import OnPolicyParams
from rl_training.algorithms.params.recurrent_params import RecurrentParams
from rl_training.experiment.configuration.fork_rules import (
    EXPLORATION,
    FREE,
    NETWORKS,
    OPTIMIZER,
    START,
    rules,
    scheduled,
)
from rl_training.experiment.schedules import ScheduleSpec


@dataclass(frozen=True)
class PPOParams(OnPolicyParams):
    """Parameters of PPO; the defaults suit small continuous and discrete tasks."""

    controls: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_coef", "ent_coef")
    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("clip_coef", "ent_coef"),
        **rules(FREE, "update_epochs", "minibatch_size", "gae_lambda", "vf_coef", "target_kl"),
        **rules(FREE, "normalize_advantage", "clip_value_loss", "optimizer_eps", "compile", "vtrace", "vtrace_clip"),
        **rules(NETWORKS, "log_std", "use_sde", "recurrent"),
        **rules(START, "orthogonal_init", "log_std_init"),
        **rules(EXPLORATION, "sde_sample_freq"),
        **rules(OPTIMIZER, "optimizer"),
    }

    clip_coef: Annotated[float, Gt(0)] = 0.2
    """The probability ratio is clipped to the range 1 - clip_coef to 1 + clip_coef."""
    clip_coef_schedule: ScheduleSpec | None = None
    """How the clip range changes over the run."""
    clip_coef_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the clip range rises linearly from 0."""
    ent_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus in the loss."""
    ent_coef_schedule: ScheduleSpec | None = None
    """How the entropy weight changes over the run."""
    ent_coef_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the entropy weight rises linearly from 0."""
    update_epochs: Annotated[int, Ge(1)] = 10
    """Passes over each rollout."""
    minibatch_size: Annotated[int, Ge(1)] | None = 64
    """Transitions per gradient step; null: the whole rollout."""
    gae_lambda: Annotated[float, Interval(ge=0, le=1)] = 0.95
    """Trade-off between bias (0) and variance (1) of the advantage estimate."""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the value loss (mean squared error)."""
    normalize_advantage: bool = True
    """Normalise the advantages of each minibatch to zero mean and unit standard deviation."""
    clip_value_loss: bool = False
    """Clip the change of the value prediction by clip_coef, as the original implementation does."""
    target_kl: Annotated[float, Gt(0)] | None = None
    """Stop the epochs of an update once the approximate KL divergence exceeds 1.5 times this."""
    orthogonal_init: bool = True
    """Initialise weights orthogonally (gain sqrt 2, policy head 0.01, value head 1)."""
    log_std: Literal["state_independent", "state_dependent"] = "state_independent"
    """Whether the Gaussian's log standard deviation is one learned vector or an output of the network."""
    log_std_init: float = 0.0
    """Initial log standard deviation of Gaussian policies."""
    use_sde: bool = False
    """Explore by generalised state-dependent noise (Raffin et al. 2020); Box actions only."""
    sde_sample_freq: Annotated[int, Ge(-1)] = -1
    """Steps between fresh exploration matrices; -1 draws them only at the start of a rollout."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer of all parameters."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-5
    """The optimizer's epsilon."""
    compile: bool = False
    """Compile the loss with torch.compile: slower to start, faster per update."""
    vtrace: bool = False
    """Correct targets and advantages of an earlier policy's rollouts (`policy_lag: 1`) by V-trace (Espeholt et al.
    2018); false: only weight the advantages by truncated importance ratios."""
    vtrace_clip: Annotated[float, Gt(0)] = 1.0
    """Largest importance ratio in rollouts of an earlier policy."""
    recurrent: RecurrentParams | None = None
    """Give the policy a memory: a recurrent layer's type, size, layers, sequence_length, chrono_init and
    separate_critic; null: no memory."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        if self.recurrent is None:
            return super().network_weights(inputs, outputs)
        memories = 2 if self.recurrent.separate_critic else 1
        return memories * self.recurrent.weights(inputs) + super().network_weights(self.recurrent.size, outputs)

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        rollout = self.num_steps * num_envs
        if self.minibatch_size is not None and self.minibatch_size > rollout:
            found.append(
                f"algo_kwargs.minibatch_size: {self.minibatch_size} is larger than the rollout of {rollout} "
                f"transitions (num_steps {self.num_steps} x num_envs {num_envs}); lower it to at most "
                f"{rollout}, or raise num_steps or num_envs"
            )
        if self.normalize_advantage and (rollout == 1 or self.minibatch_size == 1):
            found.append(
                "algo_kwargs.normalize_advantage: a minibatch of one transition has no deviation to divide by; "
                "raise minibatch_size or num_steps, or set normalize_advantage to false"
            )
        if self.recurrent is not None and self.compile:
            found.append(
                "algo_kwargs.compile: sequences differ in length, so that a policy with a memory would be "
                "compiled again and again; set it to false"
            )
        if self.recurrent is not None and self.vtrace:
            found.append(
                "algo_kwargs.vtrace: a memory is that of the policy that acted, which V-trace cannot correct; set it "
                "to false, or leave recurrent out"
            )
        if self.sde_sample_freq == 0:
            found.append("algo_kwargs.sde_sample_freq: 0 steps are not possible; use -1 for once per rollout")
        if self.use_sde and self.log_std == "state_dependent":
            found.append(
                "algo_kwargs.use_sde: its noise already depends on the state; "
                "set log_std to state_independent or use_sde to false"
            )
        return found


@dataclass(frozen=True)
class APPOParams(PPOParams):
    """Parameters of APPO: PPO for samplers with a policy lag, which V-trace corrects."""

    update_epochs: Annotated[int, Ge(1)] = 4
    """Passes over each rollout."""
    vtrace: bool = True
    """Correct targets and advantages of an earlier policy's rollouts (`policy_lag: 1`) by V-trace (Espeholt et al.
    2018); false: only weight the advantages by truncated importance ratios."""


@dataclass(frozen=True)
class A2CParams(PPOParams):
    """Parameters of A2C: PPO with one epoch over the whole rollout."""

    learning_rate: Annotated[float, Gt(0)] = 7e-4
    """Step size of the optimizer."""
    num_steps: Annotated[int, Ge(1)] = 5
    """Steps of each environment per rollout; a rollout holds num_steps * num_envs transitions."""
    update_epochs: Annotated[int, Interval(ge=1, le=1)] = 1
    """Passes over each rollout: A2C makes exactly one."""
    minibatch_size: None = None
    """A2C uses the whole rollout for one gradient step."""
    gae_lambda: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Trade-off between bias (0) and variance (1) of the advantage estimate."""
    normalize_advantage: bool = False
    """Normalise the advantages of each rollout to zero mean and unit standard deviation."""
    optimizer: Literal["adam", "rmsprop"] = "rmsprop"
    """Optimizer of all parameters."""


@dataclass(frozen=True)
class IMPALAParams(A2CParams):
    """Parameters of IMPALA: A2C for samplers with a policy lag, which V-trace corrects."""

    learning_rate: Annotated[float, Gt(0)] = 6e-4
    """Step size of the optimizer."""
    num_steps: Annotated[int, Ge(1)] = 20
    """Steps of each environment per rollout; a rollout holds num_steps * num_envs transitions."""
    ent_coef: Annotated[float, Ge(0)] = 0.01
    """Weight of the entropy bonus in the loss."""
    vtrace: bool = True
    """Correct targets and advantages of an earlier policy's rollouts (`policy_lag: 1`) by V-trace (Espeholt et al.
    2018); false: only weight the advantages by truncated importance ratios."""
