"""Updates of actors and critics for continuous actions by compiled code, and the threads that share them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.data.replay import ReplayBatch
from rl_training.kernels.checks import compare
from rl_training.kernels.compiled.barrier import BROKEN
from rl_training.kernels.compiled.continuous.actor_critics import (
    ACTOR_GRADIENT,
    ACTOR_STEP,
    ACTOR_SUM,
    CRITIC_GRADIENT,
    CRITIC_STEP,
    CRITIC_SUM,
    REPORT,
    Descent,
    Memory,
    Parameters,
    Phases,
    Transitions,
)
from rl_training.kernels.compiled.continuous.stacks import Stack
from rl_training.kernels.compiled.lanes import LANES
from rl_training.kernels.compiled.layers import Scratch, bits_size, panel_size
from rl_training.kernels.layouts import ACTIVATIONS, Place, as_array, flat_array, linear_place, stacked_places, zeros
from rl_training.models.layers import StackedMLP, parameter_pairs
from rl_training.models.optimizers import FlatOptimizer

_CHUNK = 256  # rows that are passed at once, so that their activations stay in the cache


def stack_of(values: Tensor, network: StackedMLP, heads: Sequence[nn.Linear] = ()) -> Stack:
    """Describe networks whose parameters are views of `values`; without `heads` their last layers are the heads."""
    places = [stacked_places(values, network, member) for member in range(network.count)]
    widths = [int(weight.shape[1]) for weight, _ in parameter_pairs(network)]
    last: list[list[Place]]
    if heads:
        widths, last = [*widths, network.outputs], [[linear_place(values, head) for head in heads]]
        size = heads[0].out_features
    else:
        places, last = [layers[:-1] for layers in places], [layers[-1:] for layers in places]
        size = network.outputs
    return Stack(
        sizes=as_array(widths),
        places=as_array(places),
        heads=as_array(last),
        size=size,
        activation=ACTIVATIONS[network.activation],
    )


def parameters_of(optimizer: FlatOptimizer, target: Tensor, parts: int) -> Parameters:
    """Return the memory of an optimizer and of the target network's parameters."""
    gradient = optimizer.gradient.numpy()
    partial = gradient.reshape(1, -1) if parts == 1 else np.zeros((parts, len(gradient)), np.float32)
    return Parameters(
        optimizer.values.numpy(),
        optimizer.state["exp_avg"].numpy(),
        optimizer.state["exp_avg_sq"].numpy(),
        gradient,
        partial,
        target.numpy(),
    )


def descent_of(optimizer: FlatOptimizer, learning_rate: float, limit: float | None, tau: float) -> Descent:
    """Return the numbers of an optimizer's next step; `limit` is of the gradient's norm."""
    return Descent(
        learning_rate=float(learning_rate),
        max_grad_norm=-1.0 if limit is None else float(limit),
        beta1=float(optimizer.beta1),
        eps=float(optimizer.eps),
        step=optimizer.steps + 1,
        tau=float(tau),
    )


def allocate(actors: Stack, critics: Stack) -> Memory:
    """Return the memory that one part of an update works in."""
    actor, critic = ([int(size) + -int(size) % LANES for size in stack.sizes] for stack in (actors, critics))
    outputs, widest, count = actors.heads.shape[1] * actors.size, max(actor + critic), len(critics.places)
    regions = {
        "actor": _CHUNK * sum(actor),
        "critics": _CHUNK * critic[0],
        "hidden": _CHUNK * count * sum(critic[1:]),
        "grad": _CHUNK * widest,
        "other": _CHUNK * widest,
        "head": outputs * (widest + 1),
        "outputs": _CHUNK * outputs,
        "grad_outputs": _CHUNK * outputs,
        "values": _CHUNK * count,
        "target": _CHUNK,
        "log_prob": _CHUNK,
        "action": _CHUNK * actors.size,
        "grad_action": _CHUNK * actors.size,
        "picked": _CHUNK * actors.size,
    }
    ends = list(accumulate(size + -size % LANES for size in regions.values()))
    return Memory(
        work=zeros(ends[-1]),
        scratch=Scratch(zeros(panel_size(widest)), np.zeros(bits_size(_CHUNK, widest), np.int64)),
        indices=np.zeros(_CHUNK, np.int64),
        chunk=_CHUNK,
        **dict(zip(regions, [0, *ends], strict=False)),
    )


class CompiledUpdate:
    """Takes the place of `improve`; what an algorithm adds is in its subclass."""

    def __init__(
        self, algorithm: Any, kernel: str, parts: int, actors: Stack, critics: Stack, targets: tuple[Tensor, Tensor]
    ) -> None:
        """`parts` of a batch are passed at the same time; `targets` are the weights of actor's and critics' targets.

        An actor without a target network is its own.
        """
        self.algorithm = algorithm
        self.kernel = kernel
        self.parts = parts
        self.actors, self.critics = actors, critics
        self.targets = targets
        self.actor = parameters_of(algorithm.actor_optimizer, targets[0], parts)
        self.critic = parameters_of(algorithm.critic_optimizer, targets[1], parts)
        self.memory = [allocate(actors, critics) for _ in range(parts)]
        # Calling the modules themselves takes longer than they do.
        self.encode_for_actor: Any = algorithm.actor.encoder.forward
        self.encode: Any = algorithm.critic.encoder.forward
        self._noise = torch.empty(0, actors.size)
        # One thread for each other part, since all wait for each other; they are started by their first work.
        self._threads = ThreadPoolExecutor(max(parts - 1, 1), thread_name_prefix="update")

    def run_part(self, phases: Phases, part: int, shared: tuple[Any, ...], report: np.ndarray) -> None:
        """Run phases of an update for one part of the batch."""
        raise NotImplementedError

    def settings(self) -> Any:
        """Return what the compiled update takes besides networks, batch and steps."""
        raise NotImplementedError

    def gradients(self, batch: ReplayBatch, noise: Tensor) -> list[Callable[[], Any]]:
        """Return the functions that compute the critics' and the actor's gradients by autograd."""
        raise NotImplementedError

    def noise_for(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return standard normal noise [B, size] for features [B, inputs]; the next call overwrites it."""
        if len(self._noise) != len(features):
            self._noise = torch.empty(len(features), self.actors.size)
        return self._noise.normal_(generator=generator)

    def step(self, batch: ReplayBatch, noise: Tensor, learning_rate: float, taus: tuple[float, float]) -> np.ndarray:
        """Take the gradient steps of one update and return its report; `taus` say how far the targets move."""
        algorithm = self.algorithm
        limit, actor_due = algorithm.params.max_grad_norm, algorithm.actor_due
        end = ACTOR_STEP + 1 if actor_due else ACTOR_GRADIENT
        report = self._run(batch, noise, learning_rate, limit, taus, (CRITIC_GRADIENT, end))
        stepped = [algorithm.critic_optimizer, algorithm.actor_optimizer][: 1 + actor_due]
        for optimizer in stepped:
            optimizer.count_steps(1)
        for target, tau in zip(self.targets, taus, strict=True):
            if tau:
                torch.autograd.graph.increment_version(target)
        return report

    def check_improvement(
        self, reference: Callable[..., Any], batch: ReplayBatch, noise: Tensor, learning_rate: float
    ) -> None:
        """Compare the gradients of critics and actor."""
        algorithm = self.algorithm
        optimizers = algorithm.critic_optimizer, algorithm.actor_optimizer
        for first, optimizer, gradient in zip(
            (CRITIC_GRADIENT, ACTOR_GRADIENT), optimizers, self.gradients(batch, noise), strict=True
        ):
            gradient()
            expected = optimizer.gradient.clone()
            self._run(batch, noise, learning_rate, math.inf, (0.0, 0.0), (first, first + 2))
            compare(self.kernel, "the gradient of this run's first update", optimizer.gradient, expected)

    def _run(
        self,
        batch: ReplayBatch,
        noise: Tensor,
        learning_rate: float,
        limit: float | None,
        taus: tuple[float, float],
        span: tuple[int, int],
    ) -> np.ndarray:
        """Run the phases of a span and return the report."""
        data = Transitions(
            flat_array(self.encode(batch.observation)),
            flat_array(self.encode(batch.next_observation)),
            flat_array(batch.action),
            flat_array(batch.reward),
            flat_array(batch.discount),
            flat_array(noise),
        )
        optimizers = self.algorithm.actor_optimizer, self.algorithm.critic_optimizer
        descents = [
            descent_of(optimizer, learning_rate, limit, tau) for optimizer, tau in zip(optimizers, taus, strict=True)
        ]
        shared = self.actor, self.critic, self.actors, self.critics, self.settings(), data, *descents
        report = np.zeros((self.parts, REPORT))
        phases = Phases(*span, barriers(clipped=limit is not None), np.zeros(1, np.int64))
        others = [self._threads.submit(self._run_part, phases, part, shared, report) for part in range(1, self.parts)]
        self._run_part(phases, 0, shared, report)
        for other in others:
            other.result()
        return report

    def _run_part(self, phases: Phases, part: int, shared: tuple[Any, ...], report: np.ndarray) -> None:
        """Run a part for which the others do not wait if it fails."""
        try:
            self.run_part(phases, part, shared, report)
        except BaseException:
            phases.arrived[0] = BROKEN
            raise


def barriers(*, clipped: bool) -> int:
    """Return the bits of the phases after which all parts wait for each other.

    Without clipping, a part's step depends on its own share of the gradient alone.
    """
    phases = [CRITIC_GRADIENT, CRITIC_STEP, ACTOR_GRADIENT]
    if clipped:
        phases += [CRITIC_SUM, ACTOR_SUM]
    return sum(1 << phase for phase in phases)


def tensors_of(metrics: Mapping[str, float]) -> dict[str, Tensor]:
    """Return numbers as tensors."""
    numbers = torch.from_numpy(np.array(list(metrics.values()), np.float32))
    return dict(zip(metrics, numbers.unbind(), strict=True))
