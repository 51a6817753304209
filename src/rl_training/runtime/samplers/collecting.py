"""Collection of rollouts by samplers, as the on-policy loop sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.data.observations import NumpyObservation, map_observation, to_tensor
from rl_training.data.rollout import Rollout, RolloutStorage
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import StepEvents
from rl_training.envs.vector import slot_states
from rl_training.envs.workers.row_normalize import merge_rows
from rl_training.envs.workers.shared_rows import SharedArray
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.own_code.run_code import named_code
from rl_training.experiment.own_code.user_code import AdoptedCode, uses_of
from rl_training.runtime.collector import checked_mask, checked_memory
from rl_training.runtime.samplers.environments import SampledEnvironments
from rl_training.runtime.samplers.own_rows import example_action
from rl_training.runtime.samplers.pool import SamplerPool, split_rows
from rl_training.runtime.samplers.sampler import Collected, GroupState, Order, SamplerSetup, TruncatedEpisodes
from rl_training.runtime.samplers.shared_memory import (
    RolloutForm,
    SharedRollout,
    SharedWeights,
    copied,
    packed,
    unpacked,
)
from rl_training.runtime.samplers.transport.backends import make_transport
from rl_training.runtime.setup.restored_state import check_form
from rl_training.runtime.setup.streams import derive_seeds

ALL = slice(None)
_NO_WAITS = {"wait_collect": 0.0, "wait_update": 0.0}


class SampledCollector:
    """Lets samplers fill rollouts: with the weights of now, or with `lag` while the run learns from the one before.

    With `lag`, a rollout is collected with the weights from before the last update. As soon as one is complete, the
    next begins, with the scheduled scalars that `following` returns for it, None at the end of the run. A checkpoint
    contains the state from which the rollout in progress began: collecting it again gives the same bits.
    """

    steps_in_progress = 0  # a rollout that is not complete is collected again

    def __init__(
        self,
        env: SampledEnvironments,
        actor: OnPolicyAlgorithm,
        config: TrainConfig,
        *,
        num_steps: int,
        updates: float | None,
        device: torch.device,
        generator: torch.Generator,
        controls: Mapping[str, float],
        following: Callable[[int], Mapping[str, float] | None],
        report: Callable[[str], None],
    ) -> None:
        if config.policy_lag and type(actor).as_acted is OnPolicyAlgorithm.as_acted:
            raise ConfigError(
                f"policy_lag: {config.algo} learns only from its present policy; set it to 0 (an algorithm of your own "
                "may define as_acted)"
            )
        self.env, self.actor, self.device, self.generator = env, actor, device, generator
        self.seed, self.lag = config.seed, config.policy_lag
        self._following = following
        self._step = 0  # steps of the run before the next rollout
        self._before_update: dict[str, Any] | None = None  # weights from before the last update
        self._acted: dict[str, Any] | None = None  # weights of the rollout in progress, where they are not the latest
        self._turn = 0  # which shared rollout the next one fills
        self._masked = False
        self._finished: list[float] = []  # when the samplers, which wait now, had filled their rollout
        self.updates_behind = 0  # how old the weights of the latest rollout were, in updates
        self._waits = _NO_WAITS.copy()
        assert config.samplers is not None
        self._rows = split_rows(env.num_envs, config.samplers)
        transport, seen = make_transport(config, timeout=env.timeout), self._seen_space
        memory = transport.memory
        example = example_action(actor, seen, env.num_envs, controls)
        form = RolloutForm(num_steps, env.num_envs, seen, mask_width(env.action_space), example)
        self._weights = SharedWeights(memory, actor.learned_weights())
        # With a lag, one is learned from while the other is filled.
        self._rollouts = tuple(SharedRollout(memory, form) for _ in range(2 if self.lag else 1))
        self._storages = [RolloutStorage.over(rollout.columns(ALL)) for rollout in self._rollouts]
        setup = SamplerSetup(
            code=AdoptedCode(uses_of(named_code(config, callbacks=False))),
            config=config,
            factory=env.factory,
            normalizers=env.normalizers,
            seen_space=seen,
            taken_space=env.action_space,
            num_steps=num_steps,
            updates=updates,
            controls=dict(controls),
            weights=self._weights,
            rollouts=self._rollouts,
            progress=SharedArray(memory, (config.samplers, 2), np.int64),
        )
        self.pool = env.pool = SamplerPool(setup, self._rows, timeout=env.timeout, report=report, transport=transport)
        self._states = self._reset(derive_seeds(self.seed, "environment", count=env.num_envs))

    @property
    def _seen_space(self) -> Space[Any]:
        observation = self.env.normalizers.observation
        return self.env.observation_space if observation is None else observation.normalized_space

    @property
    def bytes_moved(self) -> int:
        """Bytes of a rollout and of the weights that it is collected with."""
        return self._rollouts[0].nbytes + self._weights.nbytes

    def take_waits(self) -> dict[str, float]:
        """Return how long the run has waited for samplers since the last call, and the mean sampler for the run."""
        waits, self._waits = self._waits, _NO_WAITS.copy()
        return waits

    # -- collecting ------------------------------------------------------------------------------

    def collect(
        self,
        controls: Mapping[str, float],
        *,
        interrupted: Callable[[], bool] = lambda: False,
        on_step: Callable[[StepEvents], None] = lambda step: None,
    ) -> Rollout | None:
        """Return a full rollout, or None if `interrupted()` became true; the next call waits for the same one."""
        if not self.pool.collecting:
            self._begin(controls)
        started = time.monotonic()
        groups = self.pool.wait(interrupted)
        self._waits["wait_collect"] += time.monotonic() - started
        if groups is None:
            return None
        rollout = self._joined(groups, on_step)
        acted, self.updates_behind = self._acted, int(self._acted is not None)
        self._before_update = copied(self.actor.learned_weights()) if self.lag else None
        following = self._following(rollout.transitions) if self.lag else None
        if following is not None:
            self._begin(following)
        return self._as_acted(rollout, groups, acted)

    def _begin(self, controls: Mapping[str, float]) -> None:
        """Let the samplers begin the next rollout."""
        now = time.monotonic()
        self._waits["wait_update"] += sum(now - finished for finished in self._finished) / len(self._rows)
        self._finished = []
        self._acted = self._before_update
        self._weights.write(self.actor.learned_weights() if self._acted is None else self._acted)
        order = Order(
            rollout=self._turn,
            step=self._step,
            controls=dict(controls),
            generator=packed(self.generator.get_state()),
            normalizers=self.env.normalizers.state_dict() if self.env.normalizers else None,
            acting=packed(self.actor.acting_state()),
        )
        self.pool.begin(order, self._states)

    def _joined(self, groups: Sequence[Collected], on_step: Callable[[StepEvents], None]) -> Rollout:
        """Go on from a complete rollout of all samplers and return it."""
        self._states = [group.state for group in groups]
        self.generator.set_state(unpacked(groups[0].generator))  # all samplers have drawn the same numbers
        self.actor.load_acting_state(unpacked(groups[0].acting))
        if self.env.normalizers:
            merge_rows(self.env.normalizers, [group.gained for group in groups])
        self._masked |= any(group.masked for group in groups)
        for events in _in_order(groups):
            on_step(events)
        self._finished = [group.finished for group in groups]
        storage, turn = self._storages[self._turn], self._turn
        if not self._masked:
            storage.mask = None
        elif storage.mask is None:
            storage.mask = self._rollouts[turn].columns(ALL)["mask"]
        self._turn = (turn + 1) % len(self._rollouts)
        self._step += storage.num_steps * storage.num_envs
        states = self._states
        return storage.on_device(_joined_observation(states), self.device, _joined_memory(states), self._joined_mask())

    def _as_acted(self, rollout: Rollout, groups: Sequence[Collected], acted: Mapping[str, Any] | None) -> Rollout:
        """Return the rollout with the values of final observations by the weights that acted."""
        if acted is None:
            return self._with_final_values(rollout, groups)
        latest = copied(self.actor.learned_weights())
        self.actor.load_weights(acted)
        try:
            return self.actor.as_acted(self._with_final_values(rollout, groups))
        finally:
            self.actor.load_weights(latest)

    def _with_final_values(self, rollout: Rollout, groups: Sequence[Collected]) -> Rollout:
        """Return the rollout with the values of truncated episodes' final observations."""
        by_step: dict[int, list[TruncatedEpisodes]] = {}
        for group in groups:
            for ends in group.truncated:
                by_step.setdefault(ends.step, []).append(ends)
        if not by_step:
            return rollout
        final_value = rollout.final_value.clone()
        for step, parts in by_step.items():
            # Those of one step together, as a run without samplers values them.
            rows = torch.as_tensor(np.concatenate([ends.rows for ends in parts]), device=self.device)
            final_value[step, rows] = self._values(parts)
        return replace(rollout, final_value=final_value)

    def _values(self, parts: Sequence[TruncatedEpisodes]) -> torch.Tensor:
        """Return the values of final observations, one part after the other."""
        joined = map_observation(lambda *arrays: np.concatenate(arrays), *(ends.observation for ends in parts))
        also: Any = {}
        if any(ends.memory is not None for ends in parts):
            also["memory"] = np.concatenate([ends.memory for ends in parts])
        if self.actor.values_of_legal and any(ends.mask is not None for ends in parts):
            masks = [self._all_legal(len(ends.rows)) if ends.mask is None else ends.mask for ends in parts]
            also["mask"] = torch.as_tensor(np.concatenate(masks), device=self.device)
        return self.actor.values(to_tensor(joined, self.device), **also)

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the rollout in progress, in the form of `RolloutCollector`."""
        memory = _joined_memory(self._states)
        return {
            "env": self._env_state(),
            "observation": _joined_observation(self._states),
            "mask": self._joined_mask(),
            "rollout": None,
            **({} if memory is None else {"memory": memory}),
            **({"before_update": self._pending_weights} if self.lag else {}),
        }

    @property
    def _pending_weights(self) -> dict[str, Any] | None:
        """The weights of the rollout in progress, or of the next one."""
        return self._acted if self.pool.collecting else self._before_update

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a saved state; environments that could not be saved restart with seeds derived from `step`."""
        if state["rollout"] is not None:
            raise CheckpointError(
                "samplers: the checkpoint is in the middle of a rollout, which samplers cannot continue; resume it "
                "without samplers, or fork an earlier checkpoint"
            )
        self._step = step
        weights = state.get("before_update") if self.lag else None
        if weights is not None:
            check_form(self.actor.learned_weights(), weights, "collector.before_update")
        self._before_update = weights
        if state["env"] is None:
            seeds = derive_seeds(self.seed, "environment", "resumed", step, count=self.env.num_envs)
            self._states = self._reset(seeds)
            return
        env = state["env"]
        if self.env.normalizers:
            self.env.normalizers.load_state_dict(env["normalizers"])
            env = env["env"]
        mask = checked_mask(state["mask"], self.env.num_envs, self.env.action_space)
        memory, size = state.get("memory"), self.actor.memory_size
        if size:
            memory = checked_memory(memory, (self.env.num_envs, size))
        slots = slot_states(env, self.env.num_envs)
        self._states = [
            GroupState(
                env={"slots": slots[rows]},
                observation=map_observation(lambda array, rows=rows: array[rows], state["observation"]),
                mask=None if mask is None else mask[rows],
                memory=memory[rows] if size else None,  # type: ignore[index]
            )
            for rows in self._rows
        ]
        self.pool.command("restore", self._states)

    def _reset(self, seeds: Sequence[int]) -> list[GroupState]:
        """Start all environments with their seeds and return the samplers' states."""
        states: list[GroupState] = self.pool.command("reset", [list(seeds[rows]) for rows in self._rows])
        normalizers = self.env.normalizers
        if normalizers:
            normalizers.begin(_joined_observation(states))
            states = [replace(state, observation=normalizers.scale_observation(state.observation)) for state in states]
        self.pool.command("restore", [replace(state, env=None) for state in states])
        return states

    def _env_state(self) -> dict[str, Any] | None:
        slots: list[Any] = []
        for state in self._states:
            if state.env is None:
                return None
            slots += state.env["slots"]
        env = {"slots": slots}
        if self.env.normalizers:
            return {"env": env, "normalizers": self.env.normalizers.state_dict()}
        return env

    def _joined_mask(self) -> np.ndarray | None:
        """Return the action masks of all environments; a group without any allows everything."""
        if all(state.mask is None for state in self._states):
            return None
        parts = [
            self._all_legal(rows.stop - rows.start) if state.mask is None else state.mask
            for rows, state in zip(self._rows, self._states, strict=True)
        ]
        return np.concatenate(parts)

    def _all_legal(self, rows: int) -> np.ndarray:
        return np.ones((rows, mask_width(self.env.action_space)), np.bool_)


def _joined_observation(states: Sequence[GroupState]) -> NumpyObservation:
    observation: NumpyObservation = map_observation(
        lambda *parts: np.concatenate(parts), *(state.observation for state in states)
    )
    return observation


def _joined_memory(states: Sequence[GroupState]) -> np.ndarray | None:
    parts = [state.memory for state in states if state.memory is not None]
    return np.concatenate(parts) if parts else None


def _in_order(groups: Sequence[Collected]) -> list[StepEvents]:
    """Return the events of all samplers, step by step and then environment by environment."""
    by_step: dict[int, list[StepEvents]] = {}
    for group in groups:
        for step, events in group.events:
            by_step.setdefault(step, []).append(events)
    return [
        StepEvents(
            [episode for events in parts for episode in events.episodes],
            [metrics for events in parts for metrics in events.metrics],
        )
        for _, parts in sorted(by_step.items())
    ]
