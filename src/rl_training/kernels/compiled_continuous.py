"""Actors and critics for continuous actions as compiled code takes them, and the threads that share an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np
from torch import Tensor, nn

from rl_training.kernels.compiled.actor_critics import (
    ACTOR_GRADIENT,
    CRITIC_GRADIENT,
    CRITIC_STEP,
    CRITIC_SUM,
    Descent,
    Memory,
    Parameters,
)
from rl_training.kernels.compiled.lanes import LANES
from rl_training.kernels.compiled.layers import panel_size
from rl_training.kernels.compiled.stacks import Stack
from rl_training.kernels.layouts import ACTIVATIONS, Place, as_array, linear_place, stacked_places, zeros
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


def descent_of(
    optimizer: FlatOptimizer, *, learning_rate: float, max_grad_norm: float | None, tau: float = 0.0
) -> Descent:
    """Return the numbers of an optimizer's next step."""
    return Descent(
        learning_rate=float(learning_rate),
        max_grad_norm=-1.0 if max_grad_norm is None else float(max_grad_norm),
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
        panel=zeros(panel_size(widest)),
        indices=np.zeros(_CHUNK, np.int64),
        chunk=_CHUNK,
        **dict(zip(regions, [0, *ends], strict=False)),
    )


class Phases:
    """Runs the phases of an update, every part of the batch on a thread of its own.

    A part goes on to the next phase when all parts are through with this one, so the result depends on their number
    alone.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._threads: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[int, int, int], None], phases: Sequence[tuple[int, int]]) -> None:
        """Call `work(first phase, end, part)` for all parts and each span of phases."""
        if self.parts == 1:
            work(phases[0][0], phases[-1][1], 0)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.parts - 1, thread_name_prefix="update")
        for first, end in phases:
            others = [self._threads.submit(work, first, end, part) for part in range(1, self.parts)]
            work(first, end, 0)
            for other in others:
                other.result()


def spans(*, actor: bool, clipped: bool) -> list[tuple[int, int]]:
    """Return the spans of phases between which all parts wait for each other.

    Without clipping, a part's step depends on its own share of the gradient alone.
    """
    steps = (
        [(CRITIC_SUM, CRITIC_SUM + 1), (CRITIC_STEP, CRITIC_STEP + 1)] if clipped else [(CRITIC_SUM, CRITIC_STEP + 1)]
    )
    found = [(CRITIC_GRADIENT, CRITIC_GRADIENT + 1), *steps]
    return found + [(first + ACTOR_GRADIENT, end + ACTOR_GRADIENT) for first, end in found] if actor else found
