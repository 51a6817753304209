"""Collection of rollouts by samplers, as the on-policy loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.data.observations import map_observation, to_tensor
from rl_training.data.rollout import Rollout, RolloutStorage
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import StepEvents
from rl_training.envs.workers.row_normalize import merge_rows
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.samplers.environments import SampledEnvironments
from rl_training.runtime.samplers.groups import SampledGroups, events_in_order
from rl_training.runtime.samplers.own_rows import example_action
from rl_training.runtime.samplers.payoff import Payoff
from rl_training.runtime.samplers.sampler import Collected, Order, Sampler, TruncatedEpisodes
from rl_training.runtime.samplers.shared_memory import (
    RolloutForm,
    check_weights,
    copied,
    packed,
    unpacked,
)
from rl_training.runtime.setup.streams import derive_seeds

ALL = slice(None)


class SampledCollector:
    """Lets samplers fill rollouts: with the weights of now, or with `lag` while the run learns from the one before.

    With `lag`, a rollout is collected with the weights from before the last update. As soon as one is complete, the
    next begins, with the scheduled scalars that `following` returns for it, None at the end of the run. A checkpoint
    contains the state from which the rollout in progress began: collecting it again gives the same bits.
    """

    steps_in_progress = 0  # a rollout that is not complete is collected again
    payoff: Payoff

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
        self.updates_behind = 0  # how old the weights of the latest rollout were, in updates
        seen = env.seen_space
        example = example_action(actor, seen, env.num_envs, controls)
        self.groups = SampledGroups(
            env,
            actor,
            config,
            RolloutForm(num_steps, env.num_envs, seen, mask_width(env.action_space), example),
            make=Sampler,
            weights=actor.learned_weights(),
            rollouts=2 if self.lag else 1,  # with a lag, one is learned from while the other is filled
            updates=updates,
            controls=controls,
            report=report,
        )
        self._rollouts = self.groups.rollouts
        self._storages = [RolloutStorage.over(rollout.columns(ALL)) for rollout in self._rollouts]
        self._reset(derive_seeds(self.seed, "environment", count=env.num_envs))

    @property
    def bytes_moved(self) -> int:
        """Bytes of a rollout and of the weights that it is collected with."""
        return self._rollouts[0].nbytes + self.groups.weight_bytes

    def take_waits(self) -> dict[str, float]:
        """Return how long the run has waited for samplers since the last call, and the mean sampler for the run."""
        return self.groups.take_waits()

    # -- collecting ------------------------------------------------------------------------------

    def collect(
        self,
        controls: Mapping[str, float],
        *,
        interrupted: Callable[[], bool] = lambda: False,
        on_step: Callable[[StepEvents], None] = lambda step: None,
    ) -> Rollout | None:
        """Return a full rollout, or None if `interrupted()` became true; the next call waits for the same one."""
        if not self.groups.pool.collecting:
            self._begin(controls)
        groups = self.groups.wait(interrupted)
        if groups is None:
            return None
        rollout = self._joined(groups, on_step)
        acted, self.updates_behind = self._acted, int(self._acted is not None)
        self._before_update = copied(self.actor.learned_weights()) if self.lag else None
        following = self._following(rollout.transitions) if self.lag else None
        if following is not None:
            self._begin(following)
        return self._as_acted(self._with_final_values(rollout, groups), acted)

    def _begin(self, controls: Mapping[str, float]) -> None:
        """Let the samplers begin the next rollout."""
        self._acted = self._before_update
        order = Order(
            rollout=self._turn,
            step=self._step,
            controls=dict(controls),
            generator=packed(self.generator.get_state()),
            normalizers=self.env.normalizers.state_dict() if self.env.normalizers else None,
            acting=packed(self.actor.acting_state()),
        )
        self.groups.begin(order, self.actor.learned_weights() if self._acted is None else self._acted)

    def _joined(self, groups: Sequence[Collected], on_step: Callable[[StepEvents], None]) -> Rollout:
        """Go on from a complete rollout of all samplers and return it."""
        self.generator.set_state(unpacked(groups[0].generator))  # all samplers have drawn the same numbers
        self.actor.load_acting_state(unpacked(groups[0].acting))
        if self.env.normalizers:
            merge_rows(self.env.normalizers, [group.gained for group in groups])
        self._masked |= any(group.masked for group in groups)
        for events in events_in_order(groups).values():
            on_step(events)
        storage, turn = self._storages[self._turn], self._turn
        if not self._masked:
            storage.mask = None
        elif storage.mask is None:
            storage.mask = self._rollouts[turn].columns(ALL)["mask"]
        self._turn = (turn + 1) % len(self._rollouts)
        self._step += storage.num_steps * storage.num_envs
        shown = self.groups
        return storage.on_device(shown.observation(), self.device, shown.memory(), shown.mask())

    def _as_acted(self, rollout: Rollout, acted: Mapping[str, Any] | None) -> Rollout:
        """Return the rollout with what an update needs to know of the weights that acted, None for the latest."""
        if acted is None:
            return rollout
        latest = copied(self.actor.learned_weights())
        self.actor.load_weights(acted)
        try:
            return self.actor.as_acted(rollout)
        finally:
            self.actor.load_weights(latest)

    def _with_final_values(self, rollout: Rollout, groups: Sequence[Collected]) -> Rollout:
        """Return the rollout with the present values of truncated episodes' final observations."""
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
            masks = [self.groups.all_legal(len(ends.rows)) if ends.mask is None else ends.mask for ends in parts]
            also["mask"] = torch.as_tensor(np.concatenate(masks), device=self.device)
        return self.actor.values(to_tensor(joined, self.device), **also)

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the rollout in progress, in the form of `RolloutCollector`."""
        memory = self.groups.memory()
        return {
            "env": self.groups.env_state(),
            "observation": self.groups.observation(),
            "mask": self.groups.mask(),
            "rollout": None,
            **({} if memory is None else {"memory": memory}),
            **({"before_update": self._pending_weights} if self.lag else {}),
        }

    @property
    def _pending_weights(self) -> dict[str, Any] | None:
        """The weights of the rollout in progress, or of the next one."""
        return self._acted if self.groups.pool.collecting else self._before_update

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
            check_weights(self.actor.learned_weights(), weights, "collector.before_update")
        self._before_update = weights
        if state["env"] is None:
            self._reset(derive_seeds(self.seed, "environment", "resumed", step, count=self.env.num_envs))
        else:
            self.groups.load_env_state(state)

    def _reset(self, seeds: Sequence[int]) -> None:
        """Start all environments with their seeds."""
        groups, normalizers = self.groups, self.env.normalizers
        groups.reset(seeds)
        if normalizers:
            normalizers.begin(groups.observation())
            groups.states = [
                replace(state, observation=normalizers.scale_observation(state.observation)) for state in groups.states
            ]
        groups.restore([replace(state, env=None) for state in groups.states])
