"""Collection of transitions by samplers, as the off-policy loop sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import HostAction, OffPolicyAlgorithm
from rl_training.data.replay import Replay
from rl_training.envs.step import StepBatch
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.collector import ReplayCollector, ReplayDriver
from rl_training.runtime.samplers.environments import SampledEnvironments
from rl_training.runtime.samplers.payoff import Payoff
from rl_training.runtime.samplers.replay_sampler import PlannedStep, ReplaySampler
from rl_training.runtime.samplers.rounds import SampledRounds, TakenStep
from rl_training.runtime.setup.streams import derive_seeds


class SampledDriver(ReplayDriver[Any]):
    """Adds the steps that samplers take to a replay; the environments exist in the samplers only."""

    env: SampledEnvironments  # type: ignore[assignment]
    rounds: SampledRounds
    payoff: Payoff
    _update_follows: Callable[[int, int], bool]
    _interrupted: Callable[[], bool]

    def _start(self) -> None:
        self._ready: deque[StepBatch] = deque()  # steps that are stored, and not yet handed out
        self._reset(derive_seeds(self.seed, "environment", count=self.env.num_envs))

    def _reset(self, seeds: list[int]) -> None:
        groups = self.rounds.groups
        groups.reset(seeds)
        groups.restore([replace(state, env=None) for state in groups.states])
        self.env.normalizers.begin(groups.observation())
        self._go_on()

    def _go_on(self) -> None:
        """Go on from the states of all groups."""
        self._observation, self._mask = self.rounds.groups.observation(), self.rounds.groups.mask()

    @property
    def steps_left(self) -> int:  # type: ignore[override]
        """Steps that samplers took ahead: all those of a round are stored when it is complete."""
        return len(self._ready)

    def next_step(self) -> StepBatch | None:
        """Return the next step of all environments, or None if the run was interrupted before it was complete."""
        if not self._ready:
            taken = self.rounds.take(self.taken.value, self._interrupted)
            if taken is None:
                return None
            for step in taken:
                self.env.normalizers.update(step.step)
                self._keep(step)
                self.taken.value += self.env.num_envs
                self._ready.append(step.step)
            self._go_on()
            follows = self._update_follows(self.taken.value - self.env.num_envs, self.taken.value)
            self.rounds.look_ahead(self.taken.value, update_follows=follows)
        return self._ready.popleft()

    def _keep(self, taken: TakenStep) -> None:
        """Store a step."""
        self._store(taken.action, taken.step, **taken.stored)

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the round in progress; the rows of the replay are saved separately."""
        return {**super().state_dict(), **self.rounds.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a saved state; environments that could not be saved restart with seeds derived from `step`."""
        self.rounds.load_state_dict(state)
        super().load_state_dict(state, step=step)

    def _env_state(self) -> dict[str, Any]:
        return {"env": self.rounds.groups.env_state(), "observation": self._observation, "mask": self._mask}

    def _load_env_state(self, state: Mapping[str, Any], *, step: int) -> bool:
        self.taken.value = step
        if state["env"] is None:
            self._reset(derive_seeds(self.seed, "environment", "resumed", step, count=self.env.num_envs))
            return False
        self.rounds.groups.load_env_state(state)
        self._go_on()
        return True


class SampledReplayCollector(SampledDriver, ReplayCollector):
    """Takes the place of a `ReplayCollector` where samplers act."""

    def __init__(
        self,
        env: SampledEnvironments,
        actor: OffPolicyAlgorithm,
        make_replay: Callable[[np.ndarray, np.ndarray | None], Replay],
        config: TrainConfig,
        *,
        plan: Callable[[int, int], tuple[PlannedStep, ...]],
        update_follows: Callable[[int, int], bool],
        interrupted: Callable[[], bool],
        updates: float | None,
        device: torch.device,
        generator: torch.Generator,
        report: Callable[[str], None],
    ) -> None:
        """`plan` returns at most so many steps of the round that begins at a step of the run.

        `update_follows` says whether the run learns after the step of all environments between two step counts.
        """
        action = actor.random_actions(env.num_envs, None, torch.Generator(device)).cpu().numpy()
        size = actor.memory_size
        memory = np.zeros((env.num_envs, size), np.float32) if size else None
        self._update_follows, self._interrupted = update_follows, interrupted
        self.rounds = SampledRounds(
            env,
            actor,
            config,
            make=ReplaySampler,
            example=HostAction(action, action, memory=memory),
            more={},
            plan=plan,
            updates=updates,
            stream=generator,
            report=report,
        )
        parts: Any = {"seed": config.seed, "device": device, "generator": generator}
        super().__init__(env, actor, make_replay, **parts)  # type: ignore[arg-type]

    def step(self, controls: Mapping[str, float], *, random: bool) -> StepBatch | None:  # type: ignore[override]
        """Return the next step of all environments, taken as planned; None if the run was interrupted."""
        return self.next_step()

    def _go_on(self) -> None:
        super()._go_on()
        self.memory = self.rounds.groups.memory()
