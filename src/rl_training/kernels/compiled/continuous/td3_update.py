"""An update of TD3 in compiled code. Computes the same as `algorithms.td3.TD3.improve`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.barrier import barrier
from rl_training.kernels.compiled.blocks import fill, padded
from rl_training.kernels.compiled.continuous.actor_critics import (
    ACTOR_GRADIENT,
    ACTOR_SQUARES,
    ACTOR_SUM,
    CRITIC_GRADIENT,
    CRITIC_SQUARES,
    CRITIC_STEP,
    CRITIC_SUM,
    LOSS_ACTOR,
    Descent,
    Memory,
    Parameters,
    Phases,
    Transitions,
    actor_backward,
    actor_pass,
    add_action_gradient,
    clamp,
    critic_inputs,
    critic_loss,
    critic_pass,
    descend,
    smallest_values,
    sum_gradients,
)
from rl_training.kernels.compiled.continuous.stacks import Stack
from rl_training.search.compilation import compiled, part


class Smoothing(NamedTuple):
    """The noise on the target policy's actions."""

    deviation: float
    limit: float


@part()
def noisy_actions(
    outputs: np.ndarray,
    at: int,
    size: int,
    noise: np.ndarray,
    noise_at: int,
    deviation: float,
    limit: float,
    action: np.ndarray,
    to: int,
) -> None:
    """Write actions within [-1, 1]: squashed outputs plus noise of the given deviation, of at most `limit`."""
    for index in range(size):
        extra = clamp(noise[noise_at + index] * deviation, -limit, limit)
        action[to + index] = np.float32(clamp(math.tanh(outputs[at + index]) + extra, -1.0, 1.0))


@part()
def critic_gradient(
    target_actor: np.ndarray,
    critic: np.ndarray,
    target_critic: np.ndarray,
    actors: Stack,
    critics: Stack,
    smoothing: Smoothing,
    data: Transitions,
    memory: Memory,
    begin: int,
    end: int,
    gradient: np.ndarray,
    report: np.ndarray,
) -> None:
    """Write the critics' gradient for the rows from `begin` to `end`."""
    if begin == end:
        gradient[:] = np.float32(0.0)
    work, size = memory.work, actors.size
    for first in range(begin, end, memory.chunk):
        rows = min(end - first, memory.chunk)
        actor_pass(target_actor, actors, data.next_features, first, rows, memory)
        noisy_actions(
            work, memory.outputs, rows * size, data.noise, first * size, smoothing.deviation, smoothing.limit,
            work, memory.action,
        )  # fmt: skip
        critic_inputs(critics, data.next_features, first, work, memory.action, 0, size, rows, memory)
        smallest_values(target_critic, critics, 1, rows, memory)
        for row in range(rows):
            value = data.reward[first + row] + data.discount[first + row] * work[memory.target + row]
            work[memory.target + row] = value
        critic_loss(critic, critics, data, first, rows, 2.0, first > begin, memory, gradient, report)


@part()
def actor_gradient(
    actor: np.ndarray,
    critic: np.ndarray,
    actors: Stack,
    critics: Stack,
    data: Transitions,
    memory: Memory,
    begin: int,
    end: int,
    gradient: np.ndarray,
    report: np.ndarray,
) -> None:
    """Write the actor's gradient for the rows from `begin` to `end`: the first critic's value of its actions rises."""
    if begin == end:
        gradient[:] = np.float32(0.0)
    work, size, batch = memory.work, actors.size, len(data.reward)
    for first in range(begin, end, memory.chunk):
        rows = min(end - first, memory.chunk)
        last = actor_pass(actor, actors, data.features, first, rows, memory)
        for index in range(rows * size):
            work[memory.action + index] = math.tanh(work[memory.outputs + index])
        critic_inputs(critics, data.features, first, work, memory.action, 0, size, rows, memory)
        critic_pass(critic, critics, 0, 0, rows, memory)
        for row in range(rows):
            report[LOSS_ACTOR] -= work[memory.values + row] / batch
            work[memory.grad_outputs + row] = np.float32(-1.0 / batch)
            memory.indices[row] = row
        fill(work, memory.grad_action, padded(rows * size), 0.0)
        add_action_gradient(critic, critics, 0, rows, rows, size, memory)
        for index in range(rows * size):
            action = work[memory.action + index]
            slope = np.float32(1.0) - action * action
            work[memory.grad_outputs + index] = work[memory.grad_action + index] * slope
        actor_backward(actor, actors, rows, last, first > begin, memory, gradient)


@compiled
def td3_update(
    phases: Phases,
    index: int,
    parts: int,
    actor: Parameters,
    critic: Parameters,
    actors: Stack,
    critics: Stack,
    smoothing: Smoothing,
    data: Transitions,
    actor_descent: Descent,
    critic_descent: Descent,
    memory: Memory,
    report: np.ndarray,
) -> None:
    """Run phases of an update for one of several parts of the batch.

    They are the gradient of the critics and their step, the gradient of the actor and its step.
    """
    first, last = len(data.reward) * index // parts, len(data.reward) * (index + 1) // parts
    for phase in range(phases.first, phases.end):
        if phase == CRITIC_GRADIENT:
            critic_gradient(
                actor.target, critic.values, critic.target, actors, critics, smoothing, data,
                memory, first, last, critic.partial[index], report[index],
            )  # fmt: skip
        elif phase == CRITIC_SUM:
            sum_gradients(critic, critic_descent, index, parts, report, CRITIC_SQUARES)
        elif phase == CRITIC_STEP:
            descend(critic, critic_descent, index, parts, report, CRITIC_SQUARES)
        elif phase == ACTOR_GRADIENT:
            actor_gradient(
                actor.values, critic.values, actors, critics, data,
                memory, first, last, actor.partial[index], report[index],
            )  # fmt: skip
        elif phase == ACTOR_SUM:
            sum_gradients(actor, actor_descent, index, parts, report, ACTOR_SQUARES)
        else:
            descend(actor, actor_descent, index, parts, report, ACTOR_SQUARES)
        if phases.barriers >> phase & 1:
            barrier(phases.arrived, parts)


@compiled
def exploring_actions(
    values: np.ndarray,
    actors: Stack,
    features: np.ndarray,
    noise: np.ndarray,
    deviation: float,
    memory: Memory,
    action: np.ndarray,
) -> None:
    """Write actions [N, size] for features [N, inputs], with noise [N, size] of the given deviation."""
    size, count = actors.size, len(noise) // actors.size
    for first in range(0, count, memory.chunk):
        rows = min(count - first, memory.chunk)
        actor_pass(values, actors, features, first, rows, memory)
        at = first * size
        noisy_actions(memory.work, memory.outputs, rows * size, noise, at, deviation, np.inf, action, at)
