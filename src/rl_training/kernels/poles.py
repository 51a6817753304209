"""Collects rollouts of CartPole in compiled code: policy and environments take all steps of a rollout in few calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.data.rollout import RolloutStorage
from rl_training.envs.families.vector_cartpole import VectorCartPole
from rl_training.envs.step import StepBatch
from rl_training.kernels import requires
from rl_training.kernels.checks import KernelMismatch, replace_method, replacement

Report = Callable[[StepBatch], None]
_STEEPEST = 0.25  # radians; poles fall over before
_COLUMNS = ("observation", "action", "reward", "terminated", "truncated", "final_value")


class RolloutCollector(Protocol):
    """What the kernel knows of `runtime.collector.RolloutCollector`."""

    env: Any
    actor: Any
    generator: torch.Generator
    taken: Any

    def allocated(self, action: np.ndarray) -> RolloutStorage:
        """Return the rollout's storage."""

    def take_steps(self, controls: Mapping[str, float], on_step: Report) -> None:
        """Take some steps of the rollout."""

    def follow(self, step: StepBatch) -> None:
        """Go on from a step that was stored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of collection."""

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a saved state."""


def attach(collector: RolloutCollector, kernel: str) -> None:
    """Let compiled code take the steps of rollouts, where it also learns from them."""
    env = requires.exact(collector.env, VectorCartPole)
    acting = getattr(replacement(collector.actor, "act_on_host"), "__self__", None)
    requires.that(acting is not None, "actions are not chosen by compiled code")
    requires.that(same_sines(), "NumPy and the C library differ in the last digits of sines")
    from rl_training.kernels.compiled_ppo import CompiledPPO  # numba takes a third of a second to import

    poles = PoleCollecting(collector, env, requires.exact(acting, CompiledPPO), kernel)
    replace_method(collector, "take_steps", poles.take_steps, poles.check)


def same_sines() -> bool:
    """Return whether NumPy, which moves the poles of the plain path, rounds as the library that compiled code calls."""
    angles = np.linspace(-_STEEPEST, _STEEPEST, 2001)
    return all(
        array.tolist() == [function(angle) for angle in angles.tolist()]
        for array, function in ((np.sin(angles), math.sin), (np.cos(angles), math.cos))
    )


class PoleCollecting:
    """Takes the place of `RolloutCollector.take_steps`."""

    def __init__(self, collector: RolloutCollector, env: VectorCartPole, policy: Any, kernel: str) -> None:
        from rl_training.kernels.compiled import poles

        self.collector = collector
        self.env = env
        self.policy = policy
        self.kernel = kernel
        self._compiled = poles
        constants, outputs = env.constants, int(policy.networks.sizes[0, -1])
        self._physics = poles.Physics(
            force=float(constants.force_mag),
            gravity=float(constants.gravity),
            pole_mass=float(constants.masspole),
            total_mass=float(constants.total_mass),
            length=float(constants.length),
            pole_mass_length=float(constants.polemass_length),
            tau=float(constants.tau),
            furthest=float(constants.x_threshold),
            steepest=float(constants.theta_threshold_radians),
            most_steps=int(env.max_steps),
            costs=bool(env.sutton_barto_reward),
        )
        self._noise = torch.empty(0, env.num_envs, outputs)  # [num_steps, num_envs, outputs]
        self._noise_of_steps: tuple[torch.Tensor, ...] = ()
        self._outputs = np.empty(env.num_envs * outputs, np.float32)
        self._choice = np.empty(env.num_envs, np.int64)
        self._no_indices, self._no_mask, self._no_action = (np.empty(0, kind) for kind in (np.int64, np.uint8, "f4"))

    def take_steps(self, controls: Mapping[str, float], on_step: Report) -> None:
        """Take all steps that the rollout lacks; only steps that end an episode, and the last, are reported."""
        storage = self.collector.allocated(self._choice)
        end = storage.num_steps
        noise = self._draw(storage.position, end)
        columns = self._compiled.Columns(*(getattr(storage, name) for name in self._compiled.Columns._fields))
        while (begin := storage.position) < end:
            env = self.env
            after = self._compiled.pole_steps(
                self.policy.values,
                self.policy.networks,
                self.policy.memory,
                self._physics,
                self._compiled.Poles(env.poles, env.steps, env.returns),
                noise,
                self._no_indices,
                self._no_mask,
                self._outputs,
                self._choice,
                self._no_action,
                columns,
                begin,
                end,
            )
            storage.position, last = after, after - 1
            step = env.end_step(storage.reward[last], storage.terminated[last], storage.truncated[last])
            self.collector.taken.value += (after - begin) * env.num_envs
            self.collector.follow(step)
            on_step(step)

    def _draw(self, begin: int, end: int) -> np.ndarray:
        """Return the noise [num_steps, num_envs * outputs] of steps, drawn as each of them would draw it."""
        if len(self._noise) != end:
            self._noise = torch.empty(end, *self._noise.shape[1:])
            self._noise_of_steps = self._noise.unbind()
        for noise in self._noise_of_steps[begin:]:
            noise.exponential_(generator=self.collector.generator)
        return self._noise.numpy().reshape(end, -1)

    def check(self, reference: Callable[..., None], controls: Mapping[str, float], on_step: Report) -> None:
        """Take the steps of this rollout both ways and compare every bit, then go back to where it began."""
        found, expected = self._tried(self.take_steps, controls), self._tried(reference, controls)
        for name, array in expected.items():
            if not np.array_equal(found[name], array):
                raise KernelMismatch(self.kernel, f"the column `{name}` of this run's first rollout")

    def _tried(self, take_steps: Callable[..., None], controls: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Return what a rollout would contain, and the state that it would leave behind."""
        collector = self.collector
        state, taken, random = collector.state_dict(), collector.taken.value, collector.generator.get_state()
        storage = collector.allocated(self._choice)
        begin = storage.position
        while not storage.full:
            take_steps(controls, lambda step: None)
        after: Any = collector.state_dict()
        found = {name: getattr(storage, name).copy() for name in _COLUMNS}
        found |= {"last observation": after["observation"], "generator": collector.generator.get_state().numpy()}
        found |= {f"{name} of the poles": after["env"][name] for name in ("state", "steps", "returns")}
        collector.load_state_dict(state, step=taken)
        collector.generator.set_state(random)
        storage = collector.allocated(self._choice)  # a rollout in progress was restored to storage of its own
        storage.position = begin
        storage.final_value[begin:] = 0.0
        return found
