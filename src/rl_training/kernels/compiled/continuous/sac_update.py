"""An update of soft actor-critic in compiled code. Computes the same as `algorithms.sac.SAC.improve`."""

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
    LOG_PROB,
    LOSS_ACTOR,
    TEMPERATURE,
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
    descend,
    smallest_values,
    sum_gradients,
)
from rl_training.kernels.compiled.continuous.stacks import Stack
from rl_training.kernels.compiled.steps import adam_range
from rl_training.models.distributions import LOG_SQRT_2PI
from rl_training.models.heads import LOG_STD_RANGE
from rl_training.models.optimizers import ADAM_BETA1
from rl_training.search.compilation import compiled, part

LOWEST, HIGHEST = LOG_STD_RANGE


class Temperature(NamedTuple):
    """The weight of the entropy, each array [1]."""

    log: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    gradient: np.ndarray
    learned: bool
    target_entropy: float
    step: int


@part()
def sample(
    outputs: np.ndarray, at: int, rows: int, size: int, noise: np.ndarray, noise_at: int, action: np.ndarray, to: int
) -> None:
    """Write the actions [rows, size] that noise [rows, size] makes of means and log deviations [rows, 2, size]."""
    for row in range(rows):
        for index in range(row * size, (row + 1) * size):
            mean = at + row * size + index
            std = math.exp(clamp(outputs[mean + size], LOWEST, HIGHEST))
            action[to + index] = math.tanh(outputs[mean] + std * noise[noise_at + index])


@part()
def log_densities(memory: Memory, rows: int, size: int, noise: np.ndarray, noise_at: int) -> None:
    """Write the log-densities of sampled actions, as `models.continuous.squashed_log_prob` does."""
    work = memory.work
    for row in range(rows):
        total = np.float32(0.0)
        for index in range(row * size, (row + 1) * size):
            mean, standard = memory.outputs + row * size + index, noise[noise_at + index]
            log_std = clamp(work[mean + size], LOWEST, HIGHEST)
            raw = work[mean] + math.exp(log_std) * standard
            softplus = max(-2.0 * raw, 0.0) + math.log1p(math.exp(-2.0 * abs(raw)))
            squash = 2.0 * (math.log(2.0) - raw - softplus)
            total -= np.float32(0.5 * standard * standard + log_std + LOG_SQRT_2PI + squash)
        work[memory.log_prob + row] = total


@part()
def sample_gradient(
    memory: Memory, rows: int, size: int, noise: np.ndarray, noise_at: int, grad_log_prob: float
) -> None:
    """Write the gradient with respect to means and log deviations, given those of actions and of log-densities."""
    work = memory.work
    for row in range(rows):
        for index in range(row * size, (row + 1) * size):
            offset, action = row * size + index, work[memory.action + index]
            free = work[memory.outputs + offset + size]
            # The derivative of log(1 - tanh(x)^2) is -2 tanh(x).
            grad_raw = work[memory.grad_action + index] * (1.0 - action * action) + 2.0 * grad_log_prob * action
            grad_log_std = grad_raw * math.exp(clamp(free, LOWEST, HIGHEST)) * noise[noise_at + index] - grad_log_prob
            work[memory.grad_outputs + offset] = np.float32(grad_raw)
            inside = LOWEST <= free <= HIGHEST
            work[memory.grad_outputs + offset + size] = np.float32(grad_log_std) if inside else np.float32(0.0)


@part()
def critic_gradient(
    actor: np.ndarray,
    critic: np.ndarray,
    target_critic: np.ndarray,
    actors: Stack,
    critics: Stack,
    temperature: float,
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
        actor_pass(actor, actors, data.next_features, first, rows, memory)
        sample(work, memory.outputs, rows, size, data.noise, first * size, work, memory.action)
        log_densities(memory, rows, size, data.noise, first * size)
        critic_inputs(critics, data.next_features, first, work, memory.action, 0, size, rows, memory)
        smallest_values(target_critic, critics, 1, rows, memory)
        for row in range(rows):
            soft = work[memory.target + row] - temperature * work[memory.log_prob + row]
            work[memory.target + row] = np.float32(data.reward[first + row] + data.discount[first + row] * soft)
        critic_loss(critic, critics, data, first, rows, 1.0, first > begin, memory, gradient, report)


@part()
def actor_gradient(
    actor: np.ndarray,
    critic: np.ndarray,
    actors: Stack,
    critics: Stack,
    temperature: float,
    data: Transitions,
    memory: Memory,
    begin: int,
    end: int,
    gradient: np.ndarray,
    report: np.ndarray,
) -> None:
    """Write the actor's gradient for the rows from `begin` to `end`."""
    if begin == end:
        gradient[:] = np.float32(0.0)
    work, size, batch = memory.work, actors.size, len(data.reward)
    for first in range(begin, end, memory.chunk):
        rows, noise_at = min(end - first, memory.chunk), (batch + first) * size
        last = actor_pass(actor, actors, data.features, first, rows, memory)
        sample(work, memory.outputs, rows, size, data.noise, noise_at, work, memory.action)
        log_densities(memory, rows, size, data.noise, noise_at)
        critic_inputs(critics, data.features, first, work, memory.action, 0, size, rows, memory)
        smallest_values(critic, critics, len(critics.places), rows, memory)
        smallest_gradient(critic, critics, rows, batch, size, memory)
        for row in range(rows):
            log_prob = work[memory.log_prob + row]
            report[LOG_PROB] += log_prob / batch
            report[LOSS_ACTOR] += (temperature * log_prob - work[memory.target + row]) / batch
        sample_gradient(memory, rows, size, data.noise, noise_at, temperature / batch)
        actor_backward(actor, actors, rows, last, first > begin, memory, gradient)


@part()
def smallest_gradient(critic: np.ndarray, stack: Stack, rows: int, batch: int, size: int, memory: Memory) -> None:
    """Write minus the gradient of the mean of the smallest values with respect to the actions.

    Each critic is passed back for the rows where its value is the smallest; critics that agree share the gradient.
    """
    work, networks = memory.work, len(stack.places)
    fill(work, memory.grad_action, padded(rows * size), 0.0)
    for network in range(networks):
        count = 0
        for row in range(rows):
            smallest, agreeing = work[memory.target + row], 0
            for other in range(networks):
                agreeing += work[memory.values + other * memory.chunk + row] == smallest
            if work[memory.values + network * memory.chunk + row] == smallest:
                memory.indices[count] = row
                work[memory.grad_outputs + count] = np.float32(-1.0 / (batch * agreeing))
                count += 1
        add_action_gradient(critic, stack, network, rows, count, size, memory)


@part()
def temperature_step(temperature: Temperature, descent: Descent, parts: int, report: np.ndarray) -> None:
    """Raise a learned temperature where the entropy is below its target, lower it where it is above."""
    entropy = 0.0
    for other in range(parts):
        entropy -= report[other, LOG_PROB]
    temperature.gradient[0] = np.float32(entropy - temperature.target_entropy)
    adam_range(
        temperature.log, temperature.mean, temperature.square, temperature.gradient, 0, 1, 1.0, temperature.step,
        descent.learning_rate, ADAM_BETA1, descent.eps,
    )  # fmt: skip


@compiled
def sac_update(
    phases: Phases,
    index: int,
    parts: int,
    actor: Parameters,
    critic: Parameters,
    actors: Stack,
    critics: Stack,
    temperature: Temperature,
    data: Transitions,
    actor_descent: Descent,
    critic_descent: Descent,
    memory: Memory,
    report: np.ndarray,
) -> None:
    """Run phases of an update for one of several parts of the batch.

    They are the gradient of the critics and their step, the gradient of the actor, its step and the temperature's.
    """
    first, last = len(data.reward) * index // parts, len(data.reward) * (index + 1) // parts
    for phase in range(phases.first, phases.end):
        if phase == CRITIC_GRADIENT:
            report[index, TEMPERATURE] = math.exp(temperature.log[0])
            critic_gradient(
                actor.values, critic.values, critic.target, actors, critics, math.exp(temperature.log[0]), data,
                memory, first, last, critic.partial[index], report[index],
            )  # fmt: skip
        elif phase == CRITIC_SUM:
            sum_gradients(critic, critic_descent, index, parts, report, CRITIC_SQUARES)
        elif phase == CRITIC_STEP:
            descend(critic, critic_descent, index, parts, report, CRITIC_SQUARES)
        elif phase == ACTOR_GRADIENT:
            actor_gradient(
                actor.values, critic.values, actors, critics, math.exp(temperature.log[0]), data,
                memory, first, last, actor.partial[index], report[index],
            )  # fmt: skip
        elif phase == ACTOR_SUM:
            sum_gradients(actor, actor_descent, index, parts, report, ACTOR_SQUARES)
        else:
            descend(actor, actor_descent, index, parts, report, ACTOR_SQUARES)
            if index == 0 and temperature.learned:
                temperature_step(temperature, actor_descent, parts, report)
        if phases.barriers >> phase & 1:
            barrier(phases.arrived, parts)


@compiled
def squashed_actions(
    values: np.ndarray, actors: Stack, features: np.ndarray, noise: np.ndarray, memory: Memory, action: np.ndarray
) -> None:
    """Write actions [N, size] for features [N, inputs], sampled by noise [N, size]."""
    size, count = actors.size, len(noise) // actors.size
    for first in range(0, count, memory.chunk):
        rows = min(count - first, memory.chunk)
        actor_pass(values, actors, features, first, rows, memory)
        sample(memory.work, memory.outputs, rows, size, noise, first * size, action, first * size)
