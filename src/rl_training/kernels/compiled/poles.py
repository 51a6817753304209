"""Steps of CartPole with a compiled policy, several in one call.

Computes what `envs.families.vector_cartpole.VectorCartPole` computes, with the same operations in the same order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import gather, unpack
from rl_training.kernels.compiled.perceptrons import forward, pack_layers
from rl_training.kernels.compiled.policies import sample
from rl_training.kernels.compiled.ppo_epochs import ACTOR, Memory, Networks
from rl_training.search.compilation import compiled, part


class Physics(NamedTuple):
    """The constants of the equations of motion and of the ends of episodes."""

    force: float
    gravity: float
    pole_mass: float
    total_mass: float
    length: float
    pole_mass_length: float
    tau: float
    furthest: float  # position
    steepest: float  # angle
    most_steps: int
    costs: bool  # whether a step is worth 0 and a fall -1, not 1 each


class Poles(NamedTuple):
    """The poles of all environments, changed in place."""

    state: np.ndarray  # [4, N] position, velocity, angle, angular velocity
    steps: np.ndarray  # [N] of the episodes in progress
    returns: np.ndarray  # [N]


class Columns(NamedTuple):
    """The columns of a rollout that steps are written to."""

    observation: np.ndarray  # [T, N, 4]
    action: np.ndarray  # [T, N]
    reward: np.ndarray  # [T, N]
    terminated: np.ndarray
    truncated: np.ndarray


@part()
def push(physics: Physics, poles: Poles, row: int, action: int) -> None:
    """Integrate the equations of motion of one pole by one step of Euler's method."""
    state = poles.state
    velocity, angle, spin = state[1, row], state[2, row], state[3, row]
    cosine, sine = math.cos(angle), math.sin(angle)
    force = action * (2 * physics.force) - physics.force
    acceleration = (force + physics.pole_mass_length * (spin * spin) * sine) / physics.total_mass
    spin_change = (physics.gravity * sine - cosine * acceleration) / (
        physics.length * (4.0 / 3.0 - physics.pole_mass * (cosine * cosine) / physics.total_mass)
    )
    change = acceleration - physics.pole_mass_length * spin_change * cosine / physics.total_mass
    state[0, row] += physics.tau * velocity
    state[1, row] = velocity + physics.tau * change
    state[2, row] = angle + physics.tau * spin
    state[3, row] = spin + physics.tau * spin_change


@part()
def count_step(physics: Physics, poles: Poles, columns: Columns, step: int, row: int) -> bool:
    """Write what a moved pole gives, and return whether its episode ended."""
    terminated = abs(poles.state[0, row]) > physics.furthest or abs(poles.state[2, row]) > physics.steepest
    poles.steps[row] += 1
    truncated = poles.steps[row] >= physics.most_steps
    reward = np.float32(1.0)
    if physics.costs:
        reward = -np.float32(terminated)
    poles.returns[row] += reward
    columns.reward[step, row] = reward
    columns.terminated[step, row] = terminated
    columns.truncated[step, row] = truncated
    return terminated or truncated


@compiled
def pole_steps(
    flat: np.ndarray,
    networks: Networks,
    memory: Memory,
    physics: Physics,
    poles: Poles,
    noise: np.ndarray,
    indices: np.ndarray,
    mask: np.ndarray,
    out: np.ndarray,
    choice: np.ndarray,
    action: np.ndarray,
    columns: Columns,
    step: int,
    end: int,
) -> int:
    """Take the steps from `step` to `end` of a rollout, or until one where an episode ends; return the number after it.

    `noise` [T, N * outputs] decides what the policy samples; `out` [N * outputs] and `choice` [N] are memory to work
    in; `indices`, `mask` and `action` are empty.
    """
    sizes, count = networks.sizes[ACTOR], len(poles.steps)
    inputs, outputs = sizes[0], sizes[-1]
    pack_layers(flat, networks.places[ACTOR], sizes, memory.values, 0)
    ended = False
    while step < end and not ended:
        for row in range(count):
            for feature in range(inputs):
                columns.observation[step, row, feature] = np.float32(poles.state[feature, row])
        features = columns.observation[step].reshape(count * inputs)
        for first in range(0, count, memory.chunk):
            rows = min(count - first, memory.chunk)
            gather(features, inputs, indices, first, rows, memory.trace, 0)
            at = forward(memory.values, 0, sizes, networks.activation, rows, memory.trace, 0)
            unpack(memory.trace, at, rows, outputs, out, first * outputs, outputs, 1)
        sample(
            out, count, outputs, networks.policy, networks.choices, flat, networks.log_std, noise[step], mask,
            choice, action,
        )  # fmt: skip
        for row in range(count):
            columns.action[step, row] = choice[row]
            push(physics, poles, row, choice[row])
            if count_step(physics, poles, columns, step, row):
                ended = True
        step += 1
    return step
