"""Parameters of ScaleZero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge, Interval

from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.planning.params import PlanningParams
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, STAGES, rules
from rl_training.experiment.tasks import Task, is_suite

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

SIMPLEX_SIZE = 8  # numbers of a latent that form one distribution


@dataclass(frozen=True)
class ScaleZeroParams(PlanningParams):
    """Parameters of ScaleZero."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(NETWORKS, "width", "layers", "heads", "context_steps", "experts", "top_k", "expert_size"),
        **rules(NETWORKS, "adapters", "adapter_rank"),
        **rules(FREE, "latent_coef", "entropy_coef", "balance_coef", "reopen_tasks"),
        **rules(STAGES, "parameter_scaling", "stage_steps", "first_stage_steps"),
    }

    search: Literal["puct", "gumbel"] = "gumbel"
    """Selection rule: PUCT, by prior and visits (MuZero), or sequential halving (Gumbel MuZero)."""
    num_simulations: Annotated[int, Ge(1)] = 16
    """Simulations per search."""
    buffer_size: Annotated[int, Ge(1)] = 100_000
    """Capacity of each task's replay in steps."""
    batch_size: Annotated[int, Ge(1)] = 192
    """Windows of experience per gradient step, divided among the tasks in training."""
    per_alpha: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Exponent of the priorities (errors of the searched values) when windows are sampled: 0 samples uniformly."""
    hidden_size: Annotated[int, Ge(1)] = 64
    """Width of the hidden layers of the tasks' encoders and heads."""
    width: Annotated[int, Ge(8)] = 64
    """Width of latents and tokens, a multiple of 8 and of heads."""
    layers: Annotated[int, Ge(1)] = 2
    """Layers of the transformer."""
    heads: Annotated[int, Ge(1)] = 4
    """Attention heads of each layer."""
    context_steps: Annotated[int, Ge(2)] = 6
    """Context length of the transformer in steps, in training and in the search."""
    experts: Annotated[int, Ge(1)] = 4
    """Routed experts of each feed-forward layer besides the shared one; 1: a dense layer of equal active size."""
    top_k: Annotated[int, Ge(1)] = 1
    """Experts per token besides the shared one."""
    expert_size: Annotated[int, Ge(1)] = 128
    """Hidden units of an expert."""
    latent_coef: Annotated[float, Ge(0)] = 10.0
    """Weight of the distance between predicted and encoded latents."""
    value_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the value loss."""
    entropy_coef: Annotated[float, Ge(0)] = 1e-4
    """Weight of the policy's entropy, which is maximised."""
    balance_coef: Annotated[float, Ge(0)] = 1e-2
    """Weight of the experts' load balance."""
    parameter_scaling: bool | None = None
    """Solved tasks leave training and adapters are added in stages; null: true if every task has a target_return."""
    adapters: Annotated[int, Ge(1)] = 2
    """Number of adapters, one per stage after the first."""
    adapter_rank: Annotated[int, Ge(1)] = 8
    """Rank of each adapter."""
    stage_steps: Annotated[int, Ge(1)] | None = None
    """Steps of a stage; the next stage begins with the first evaluation after them; null: equal shares of the run."""
    first_stage_steps: Annotated[int, Ge(0)] = 0
    """Least number of steps of stage 0, which trains the whole backbone; it takes precedence over stage_steps."""
    reopen_tasks: bool = True
    """A solved task that is later evaluated below its target returns to training and does not leave it again."""

    @property
    def with_successors(self) -> bool:
        """Whether batches include the observations after each step."""
        return True

    @property
    def absorbing_ends(self) -> bool:
        """Whether a terminal state is absorbing: it is repeated after the end of the episode."""
        return True

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        width, hidden = self.width, self.hidden_size
        experts = (1 + self.top_k if self.experts == 1 else self.experts + 1) * self.expert_size
        layer = dense_weights(width, 3 * width) + dense_weights(width, width) + dense_weights(width, experts, width)
        task = dense_weights(inputs, hidden, width) + 2 * dense_weights(width, hidden) + dense_weights(hidden, width)
        heads = dense_weights(hidden, outputs + 2 * (2 * self.support_size + 1))
        adapters = self.adapters * self.adapter_rank * 2 * (width + experts)
        window = 2 * self.context_steps  # positions, and rows of the attention mask
        return self.layers * (layer + adapters) + window * (width + window) + task + heads

    @property
    def latent_numbers(self) -> int:
        """Numbers per state that the search stores: keys and values of its context, and their count."""
        return self.layers * 2 * self.context_steps * 2 * self.width + 1

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        if self.width % SIMPLEX_SIZE or self.width % self.heads:
            found.append(
                f"algo_kwargs.width: {self.width} is not a multiple of {SIMPLEX_SIZE}, the size of a latent's group, "
                f"and of the {self.heads} heads; choose one that is"
            )
        if 1 < self.experts < self.top_k:
            found.append(f"algo_kwargs.top_k: {self.top_k} of {self.experts} experts cannot be chosen; lower top_k")
        if self.context_steps <= self.unroll_steps:
            found.append(
                f"algo_kwargs.context_steps: {self.context_steps} steps do not hold the {self.unroll_steps + 1} states "
                f"of an unroll; raise it to {self.unroll_steps + 1} or lower unroll_steps"
            )
        return found

    def scales(self, tasks: Sequence[Task]) -> bool:
        """Return whether solved tasks leave training."""
        if self.parameter_scaling is None:
            return all(task.target_return is not None for task in tasks)
        return self.parameter_scaling

    def task_problems(self, tasks: Sequence[Task], config: TrainConfig) -> list[tuple[str, str]]:
        """Return keys and error messages where the tasks or their evaluation do not fit the parameters."""
        if len(tasks) > self.batch_size:
            return [("algo_kwargs.batch_size", f"leaves nothing for some of {len(tasks)} tasks; raise it")]
        if self.shrink_n_step and len(tasks) > 1:
            return [("algo_kwargs.shrink_n_step", "counts a step's age by the run, not by its task; set it to false")]
        if not self.scales(tasks):
            return []
        found = [
            (
                f"env_kwargs.tasks.{number}.target_return" if is_suite(config) else "env_kwargs.tasks",
                f"parameter scaling needs to know when {task.name} is solved; state its target_return in a list of "
                "tasks, or set algo_kwargs.parameter_scaling to false",
            )
            for number, task in enumerate(tasks)
            if task.target_return is None
        ]
        if config.eval_interval is None or config.eval_episodes == 0:
            found.append(
                (
                    "eval_interval" if config.eval_interval is None else "eval_episodes",
                    "parameter scaling needs evaluations to find out whether a task is solved; set eval_interval and "
                    "eval_episodes, or algo_kwargs.parameter_scaling to false",
                )
            )
        return found
