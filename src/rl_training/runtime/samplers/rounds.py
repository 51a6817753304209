"""Rounds: the steps that samplers take for a run with a replay between two exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm, HostAction
from rl_training.data.observations import map_observation
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import StepBatch, StepEvents
from rl_training.envs.vector import with_final_masks, with_finals
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.samplers.environments import SampledEnvironments
from rl_training.runtime.samplers.groups import SampledGroups, events_in_order
from rl_training.runtime.samplers.replay_sampler import CollectedRound, PlannedStep, RoundOrder
from rl_training.runtime.samplers.sampler import GroupSampler, SamplerSetup
from rl_training.runtime.samplers.shared_memory import (
    RolloutForm,
    check_weights,
    copied,
    packed,
    stream_state,
    unpacked,
)
from rl_training.runtime.session import TrainingSession

ALL = slice(None)
LONGEST_ROUND = 32
"""Steps of all environments that samplers take at most before an exchange."""
_NO_EVENTS = StepEvents((), ())
_TAKEN = ("action", "reward", "terminated", "truncated")


class TakenStep(NamedTuple):
    """A step of all environments that samplers took."""

    action: np.ndarray
    step: StepBatch
    stored: dict[str, np.ndarray]
    """What the replay keeps of it in addition, by name."""


def plan_round(
    session: TrainingSession,
    step: int,
    longest: int,
    *,
    learns: Callable[[int, int], bool],
    random_until: int = 0,
) -> tuple[PlannedStep, ...]:
    """Return the steps from `step` on that samplers can take at once, at most `longest`; none at the end of the run.

    They end where an update may follow the step between two step counts, and where the session has something to do.
    Actions are random before the step `random_until`.
    """
    planned: list[PlannedStep] = []
    num_envs, horizon = session.config.num_envs, session.config.total_timesteps
    while step < horizon and len(planned) < longest:
        planned.append(PlannedStep(session.controls_at(step), step < random_until))
        after = step + num_envs
        if learns(step, min(after, horizon)) or session.due_between(step, after):
            break
        step = after
    return tuple(planned)


class SampledRounds:
    """Lets samplers take steps: with the weights of now, or with `lag` while the run learns from earlier ones.

    With `lag`, the steps between two updates are taken with the weights from before the first of them. As soon as a
    round is complete, the next begins. A checkpoint contains the state from which the round in progress began: taking
    its steps again gives the same bits. Rounds are cut wherever a run without samplers would do something else than
    step, so that a checkpoint lies between two of them; where they are cut changes no bit.
    """

    def __init__(
        self,
        env: SampledEnvironments,
        actor: Algorithm,
        config: TrainConfig,
        *,
        make: Callable[[SamplerSetup, int, slice], GroupSampler],
        example: HostAction,
        more: Mapping[str, tuple[tuple[int, ...], Any]],
        plan: Callable[[int, int], tuple[PlannedStep, ...]],
        updates: float | None,
        stream: torch.Generator | np.random.Generator,
        report: Callable[[str], None],
    ) -> None:
        """`plan` returns at most so many steps of the round that begins at a step of the run, none at its end.

        `example` is what acting returns for one step, `more` the form of further columns, which the replay keeps.
        """
        actor.check_sampled(config.policy_lag)
        self.env, self.actor, self.lag, self.stream = env, actor, config.policy_lag, stream
        self._plan = plan
        self._stored = (*(() if example.memory is None else ("memory",)), *more)
        self._before_update: dict[str, Any] | None = None  # weights of the next round, where they are not the latest
        self._acted: dict[str, Any] | None = None  # those of the round in progress
        self._order: RoundOrder
        self._length = 0  # steps of the latest round
        self.updates_behind = 0  # how old the weights of the latest round were, in updates
        # Statistics that every step changes are exchanged at every step.
        self.longest = LONGEST_ROUND if env.normalizers.observation is None else 1
        form = RolloutForm(
            self.longest,
            env.num_envs,
            env.observation_space,
            mask_width(env.action_space),
            example,
            raw=True,
            more=more,
        )
        self.groups = SampledGroups(
            env,
            actor,
            config,
            form,
            make=make,
            weights=actor.acting_weights(),
            rollouts=1,  # all of a round is stored elsewhere before the next begins
            updates=updates,
            controls=plan(0, 1)[0].controls,
            report=report,
        )
        (rounds,) = self.groups.rollouts
        self._columns, self._step_bytes = rounds.columns(ALL), rounds.nbytes // self.longest

    @property
    def bytes_moved(self) -> int:
        """Bytes of the latest round and of the weights that it was taken with."""
        return self._length * self._step_bytes + self.groups.weight_bytes

    def show(self, session: TrainingSession) -> None:
        """Add what samplers cost to the rows of a session."""
        session.show(policy_lag=self.updates_behind, bytes_moved=self.bytes_moved)
        session.add_times(self.groups.take_waits())

    # -- taking steps ----------------------------------------------------------------------------

    def take(self, step: int, interrupted: Callable[[], bool]) -> list[TakenStep] | None:
        """Return the steps of the round that begins at `step`, or None if `interrupted()` became true."""
        if not self.groups.pool.collecting:
            self._begin(step)
        groups: list[CollectedRound] | None = self.groups.wait(interrupted)
        if groups is None:
            return None
        self._length = len(self._order.steps)
        stream_state(self.stream, unpacked(groups[0].generator))  # all samplers have drawn the same numbers
        self.actor.load_acting_state(unpacked(groups[0].acting))
        self.updates_behind = int(self._acted is not None)
        events = events_in_order(groups)
        return [self._taken(number, groups, events) for number in range(self._length)]

    def look_ahead(self, step: int, *, update_follows: bool) -> None:
        """With a lag, let the samplers begin the round after the one that was taken, before the run learns from it."""
        if not self.lag:
            return
        self._before_update = copied(self.actor.acting_weights()) if update_follows else self._acted
        self._begin(step)

    def _begin(self, step: int) -> None:
        planned = self._plan(step, self.longest)
        if not planned:
            return
        self._acted = self._before_update
        self._order = RoundOrder(
            rollout=0,
            step=step,
            controls=planned[0].controls,
            generator=packed(stream_state(self.stream)),
            normalizers=None if self.env.normalizers.observation is None else self.env.normalizers.state_dict(),
            acting=packed(self.actor.acting_state()),
            steps=planned,
        )
        self.groups.begin(self._order, self.actor.acting_weights() if self._acted is None else self._acted)

    def _taken(self, number: int, groups: Sequence[CollectedRound], events: Mapping[int, StepEvents]) -> TakenStep:
        """Return one step of a round as a run without samplers would see it."""
        columns, following = self._columns, number + 1
        # Copied, since samplers write the next round to the same memory.
        if following == self._length:
            obs, mask = self.groups.observation(), self.groups.mask()
        else:
            obs = map_observation(lambda column: column[following].copy(), columns["observation"])
            masked = any(group.shows_mask[following] for group in groups)
            mask = columns["mask"][following].copy() if masked else None
        action, reward, terminated, truncated = (columns[name][number].copy() for name in _TAKEN)
        ends = [end for group in groups for step, end in group.ends if step == number]
        happened = events.get(number, _NO_EVENTS)
        step = StepBatch(
            obs,
            reward,
            terminated,
            truncated,
            with_finals(obs, ends) if ends else obs,
            mask,
            list(happened.episodes),
            with_final_masks(mask, [(end.row, end.mask) for end in ends], self.env.num_envs),
            happened.metrics,
        )
        return TakenStep(action, step, {name: columns[name][number].copy() for name in self._stored})

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the round in progress, or of the next one, where they are not the latest."""
        if not self.lag:
            return {}
        return {"before_update": self._acted if self.groups.pool.collecting else self._before_update}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the weights of the next round from a collector's state."""
        weights = state.get("before_update") if self.lag else None
        if weights is not None:
            check_weights(self.actor.acting_weights(), weights, "collector.before_update")
        self._before_update = weights
