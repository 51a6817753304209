"""The groups of environments that samplers hold, as the run sees them: their states, and the exchange with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.data.observations import NumpyObservation, map_observation
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import StepEvents
from rl_training.envs.vector import slot_states
from rl_training.envs.workers.shared_rows import SharedArray
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.own_code.run_code import named_code
from rl_training.experiment.own_code.user_code import AdoptedCode, uses_of
from rl_training.runtime.collector import checked_mask, checked_memory
from rl_training.runtime.samplers.environments import SampledEnvironments
from rl_training.runtime.samplers.pool import SamplerPool, split_rows
from rl_training.runtime.samplers.sampler import Collected, GroupSampler, GroupState, Order, SamplerSetup
from rl_training.runtime.samplers.shared_memory import RolloutForm, SharedRollout, SharedWeights
from rl_training.runtime.samplers.transport.backends import make_transport

_NO_WAITS = {"wait_collect": 0.0, "wait_update": 0.0}


class SampledGroups:
    """The environments of a run in groups, one per sampler."""

    def __init__(
        self,
        env: SampledEnvironments,
        actor: Algorithm,
        config: TrainConfig,
        form: RolloutForm,
        *,
        make: Callable[[SamplerSetup, int, slice], GroupSampler],
        weights: Mapping[str, Any],
        rollouts: int,
        updates: float | None,
        controls: Mapping[str, float],
        report: Callable[[str], None],
    ) -> None:
        """Start samplers, which `make` makes, with so many `rollouts` of a form to fill and weights like those given.

        `updates` is about how many gradient steps the run takes, `controls` are scheduled scalars to try the policy
        with.
        """
        assert config.samplers is not None
        self.env, self.actor, self.rows = env, actor, split_rows(env.num_envs, config.samplers)
        transport = make_transport(config, timeout=env.timeout)
        self._weights = SharedWeights(transport.memory, weights)
        self.rollouts = tuple(SharedRollout(transport.memory, form) for _ in range(rollouts))
        self._finished: list[float] = []  # when the samplers, which wait now, had done their work
        self._waits = _NO_WAITS.copy()
        self.shares_acting = False
        """Whether samplers act for their own environments only; else each computes what the run would."""
        self.alone_seconds = 0.0
        """About how long the run would have taken to collect by itself."""
        self.states: list[GroupState] = []
        """The states of all groups where the latest exchange ended."""
        setup = SamplerSetup(
            code=AdoptedCode(uses_of(named_code(config, callbacks=False))),
            config=config,
            make=make,
            factory=env.factory,
            normalizers=env.normalizers,
            seen_space=env.seen_space,
            taken_space=env.action_space,
            num_steps=form.num_steps,
            updates=updates,
            controls=dict(controls),
            weights=self._weights,
            rollouts=self.rollouts,
            progress=SharedArray(transport.memory, (config.samplers, 2), np.int64),
        )
        self.pool = env.pool = SamplerPool(setup, self.rows, timeout=env.timeout, report=report, transport=transport)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that samplers act with."""
        return self._weights.nbytes

    def take_waits(self) -> dict[str, float]:
        """Return how long the run has waited for samplers since the last call, and the mean sampler for the run."""
        waits, self._waits = self._waits, _NO_WAITS.copy()
        return waits

    # -- exchanging ------------------------------------------------------------------------------

    def begin(self, order: Order, weights: Mapping[str, Any]) -> None:
        """Let the samplers go on from their states with these weights."""
        now = time.monotonic()
        self._waits["wait_update"] += sum(now - finished for finished in self._finished) / len(self.rows)
        self._finished = []
        self._weights.write(weights)
        self.pool.begin(order, self.states)

    def wait(self, interrupted: Callable[[], bool]) -> list[Any] | None:
        """Return what all samplers have collected and go on from there, or None if `interrupted()` became true."""
        started = time.monotonic()
        groups = self.pool.wait(interrupted)
        self._waits["wait_collect"] += time.monotonic() - started
        if groups is not None:
            self.states = [group.state for group in groups]
            self._finished = [group.finished for group in groups]
            shares = [group.acting_seconds for group in groups]
            acting = sum(shares) if self.shares_acting else max(shares)
            self.alone_seconds += acting + sum(group.stepping_seconds for group in groups)
        return groups

    def reset(self, seeds: Sequence[int]) -> None:
        """Start all environments with their seeds."""
        self.states = self.pool.command("reset", [list(seeds[rows]) for rows in self.rows])

    def restore(self, states: Sequence[GroupState]) -> None:
        """Let the samplers go on from other states; environments without a saved one stay as they are."""
        self.pool.command("restore", states)

    # -- states of all groups --------------------------------------------------------------------

    def observation(self) -> NumpyObservation:
        """Return the current observations of all environments."""
        observation: NumpyObservation = map_observation(
            lambda *parts: np.concatenate(parts), *(state.observation for state in self.states)
        )
        return observation

    def memory(self) -> np.ndarray | None:
        """Return the policy's memories of all environments, None if it has none."""
        parts = [state.memory for state in self.states if state.memory is not None]
        return np.concatenate(parts) if parts else None

    def mask(self) -> np.ndarray | None:
        """Return the action masks of all environments; a group without any allows everything."""
        return self.joined_mask([state.mask for state in self.states])

    def joined_mask(self, parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
        """Return the masks of all environments, None if no group has any."""
        if all(part is None for part in parts):
            return None
        filled = [
            self.all_legal(rows.stop - rows.start) if part is None else part
            for rows, part in zip(self.rows, parts, strict=True)
        ]
        return np.concatenate(filled)

    def all_legal(self, rows: int) -> np.ndarray:
        """Return masks [rows, choices] that allow everything."""
        return np.ones((rows, mask_width(self.env.action_space)), np.bool_)

    def env_state(self) -> dict[str, Any] | None:
        """Return the state of all environments in the form of a `SyncVectorEnv`, None if they cannot be saved."""
        slots: list[Any] = []
        for state in self.states:
            if state.env is None:
                return None
            slots += state.env["slots"]
        env = {"slots": slots}
        if self.env.normalizers:
            return {"env": env, "normalizers": self.env.normalizers.state_dict()}
        return env

    def load_env_state(self, state: Mapping[str, Any]) -> None:
        """Restore environments, observations, masks and memories of a collector's state."""
        env = state["env"]
        if self.env.normalizers:
            self.env.normalizers.load_state_dict(env["normalizers"])
            env = env["env"]
        mask = checked_mask(state["mask"], self.env.num_envs, self.env.action_space)
        memory, size = state.get("memory"), self.actor.memory_size
        if size:
            memory = checked_memory(memory, (self.env.num_envs, size))
        slots = slot_states(env, self.env.num_envs)
        self.states = [
            GroupState(
                env={"slots": slots[rows]},
                observation=map_observation(lambda array, rows=rows: array[rows], state["observation"]),
                mask=None if mask is None else mask[rows],
                memory=memory[rows] if size else None,  # type: ignore[index]
            )
            for rows in self.rows
        ]
        self.restore(self.states)


def events_in_order(groups: Sequence[Collected]) -> dict[int, StepEvents]:
    """Return the events of all samplers by step, in its order; within a step environment by environment."""
    by_step: dict[int, list[StepEvents]] = {}
    for group in groups:
        for step, events in group.events:
            by_step.setdefault(step, []).append(events)
    return {
        step: StepEvents(
            [episode for events in parts for episode in events.episodes],
            [metrics for events in parts for metrics in events.metrics],
        )
        for step, parts in sorted(by_step.items())
    }
