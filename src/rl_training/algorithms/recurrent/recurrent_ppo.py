"""PPO with a memory: the same loss over sequences, each run from the memory that acting had at its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.algorithms.advantages import importance_weight
from rl_training.algorithms.base import HostAction
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.ppo import FEWEST_ROWS, PPO, Controls, PPOBatch, ppo_loss
from rl_training.data.observations import (
    NumpyObservation,
    Observation,
    index_observation,
    to_tensor,
)
from rl_training.data.rollout import Rollout
from rl_training.models.heads import StateDependentNoiseHead
from rl_training.models.recurrent import RecurrentActorCritic, Sequences, Step


@dataclass(frozen=True)
class SequenceBatch(PPOBatch):
    """Rows of a minibatch that are sequences, one after the other."""

    sequences: Sequences = field(kw_only=True)


class RecurrentPPO(PPO):
    """PPO whose actor and critic remember."""

    def make_model(
        self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator
    ) -> nn.Module:
        """Return the network; it maps observations and memories to action distributions, values and memories."""
        params, recurrent = self.params, self.params.recurrent
        assert recurrent is not None
        return RecurrentActorCritic(
            self.make_encoder(observation_space, orthogonal=params.orthogonal_init, generator=generator),
            action_space,
            kind=recurrent.type,
            size=recurrent.size,
            layers=recurrent.layers,
            separate_critic=recurrent.separate_critic,
            chrono_init=recurrent.chrono_init,
            hidden_sizes=params.hidden_sizes,
            activation=params.activation,
            orthogonal_init=params.orthogonal_init,
            log_std=params.log_std,
            log_std_init=params.log_std_init,
            use_sde=params.use_sde,
            generator=generator,
        )

    @property
    def memory_size(self) -> int:
        """Numbers that an environment's memory consists of."""
        size: int = self.model.memory_size
        return size

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the encoder does not return features."""
        rows = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        step = self.model.step(observation, torch.zeros(rows, self.memory_size, device=self.device))
        check_shape(self.model, "values", step.value, ROWS)

    @torch.inference_mode()
    def act_on_host(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
        memory: np.ndarray | None = None,
    ) -> HostAction:
        """Return exploratory actions, what an update needs to know of them, and the memories after them."""
        legal = None if mask is None else torch.as_tensor(mask, device=self.device)
        step = self._step(to_tensor(observation, self.device), memory)
        distribution = self.model.policy_of(step.actor, legal)
        if self.params.use_sde:
            head = self.model.head
            assert isinstance(head, StateDependentNoiseHead)
            action = head.explore(step.actor, self.exploration.step(head.log_std, len(step.actor), generator))
        else:
            action = distribution.sample(generator)
        log_prob = distribution.log_prob(action)
        host = (action, log_prob, step.value, step.memory)
        stored, log_probs, values, after = (tensor.cpu().numpy() for tensor in host)
        return HostAction(stored, self.env_action(action), log_probs, values, after)

    @torch.inference_mode()
    def choose_with_memory(
        self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the most likely actions, or sampled ones if a generator is given, and the memories after them."""
        step = self.model.step(observation, memory)
        distribution = self.model.policy_of(step.actor, mask)
        return distribution.mode() if generator is None else distribution.sample(generator), step.memory

    @torch.no_grad()
    def env_log_prob_with_memory(
        self, observation: Observation, mask: Tensor | None, action: np.ndarray, memory: Tensor
    ) -> Tensor | None:
        """Return the log-probabilities [B] of actions in the environment's format; None with a model of one's own."""
        if not isinstance(self.model, RecurrentActorCritic):
            return None
        step = self.model.step(observation, memory)
        return self.model.head.env_log_prob(self.model.policy_of(step.actor, mask), action)

    @torch.no_grad()
    def values(self, observation: Observation, memory: np.ndarray | None = None) -> Tensor:
        """Return the critic's values [B] of observations that follow memories [B, memory size]."""
        return self._step(observation, memory).value

    def _step(self, observation: Observation, memory: np.ndarray | None) -> Step:
        assert memory is not None
        step: Step = self.model.step(observation, torch.as_tensor(memory, device=self.device))
        return step

    def loss(self, batch: PPOBatch, controls: Controls) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch of sequences and its parts."""
        assert isinstance(batch, SequenceBatch)

        def model(observation: Observation, mask: Tensor | None) -> Any:
            return self.model.run(observation, mask, batch.sequences)

        return ppo_loss(model, batch, controls, self.params)

    def prepare(self, rollout: Rollout) -> SequenceBatch:
        """Compute what `PPO.prepare` does, and put the rows of sequences one after the other."""
        assert rollout.memory is not None
        assert rollout.log_prob is not None
        assert self.params.recurrent is not None
        rows, lengths = sequence_rows(rollout.terminated | rollout.truncated, self.params.recurrent.sequence_length)
        flat_memory = rollout.memory.flatten(0, 1)
        with torch.no_grad():
            log_prob, value = rollout.log_prob, rollout.value
            weight: Tensor | float = 1.0
            if value is None:  # an earlier policy acted
                log_prob, value = self._evaluate_sequences(rollout, rows, lengths, flat_memory)
                weight = importance_weight(log_prob - rollout.log_prob, self.params.vtrace_clip)
            advantage = self.advantages(rollout, value, self.last_values(rollout))
        if rollout.real is not None:  # a step of an absent agent is a sequence by itself
            real = rollout.real.flatten()[rows]
            lengths = lengths[real[torch.cumsum(lengths, 0) - lengths]]
            rows = rows[real]
        first = torch.cumsum(lengths, 0) - lengths
        mask = rollout.flat_mask()
        return SequenceBatch(
            observation=index_observation(rollout.flat_observation(), rows),
            action=rollout.flat_action()[rows],
            action_mask=None if mask is None else mask[rows],
            log_prob=log_prob.flatten()[rows],
            value=value.flatten()[rows],
            advantage=(advantage * weight).flatten()[rows],
            target_value=(advantage + value).flatten()[rows],
            sequences=Sequences(lengths, flat_memory[rows[first]]),
        )

    def _evaluate_sequences(
        self, rollout: Rollout, rows: Tensor, lengths: Tensor, flat_memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and values [num_steps, num_envs]; sequences start with the memories of acting."""
        observation, action, mask = rollout.flat_observation(), rollout.flat_action(), rollout.flat_mask()
        log_probs, values = (torch.empty_like(rollout.reward).flatten() for _ in range(2))
        size = max(self.params.minibatch_size or 0, FEWEST_ROWS)
        for group, places in grouped(lengths, torch.arange(len(lengths), device=self.device), size):
            at = rows[places]
            begins = at[torch.cumsum(lengths[group], 0) - lengths[group]]
            seen, legal = index_observation(observation, at), None if mask is None else mask[at]
            distribution, values[at] = self.model.run(seen, legal, Sequences(lengths[group], flat_memory[begins]))
            log_probs[at] = distribution.log_prob(action[at])
        return log_probs.view_as(rollout.reward), values.view_as(rollout.reward)

    def last_values(self, rollout: Rollout) -> Tensor:
        """Return the values [num_envs] of the observations after the last step, with the memories there."""
        assert rollout.last_memory is not None
        value: Tensor = self.model.step(rollout.last_observation, rollout.last_memory).value
        return value

    def _minibatches(self, batch: PPOBatch, generator: torch.Generator) -> Iterator[PPOBatch]:
        """Yield minibatches of whole sequences in random order, all of them once per epoch.

        A minibatch has about `minibatch_size` transitions: the sequences of a shuffled rollout up to the one that
        fills it.
        """
        assert isinstance(batch, SequenceBatch)
        lengths, memory = batch.sequences
        rows = int(lengths.sum())
        size = min(self.params.minibatch_size or rows, rows)
        for _ in range(self.params.update_epochs):
            order = torch.randperm(len(lengths), generator=generator, device=self.device)
            for group, indices in grouped(lengths, order, size):
                if len(indices) > 1 or not self.params.normalize_advantage:
                    selected = batch.select(indices)
                    yield SequenceBatch(**vars(selected), sequences=Sequences(lengths[group], memory[group]))


def grouped(lengths: Tensor, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield groups of sequences in the given order, about `size` rows each, and where their rows are.

    Rows of all sequences lie one after the other; a group is filled by its last sequence.
    """
    first = torch.cumsum(lengths, 0) - lengths
    filled = (torch.cumsum(lengths[order], 0) - 1) // size  # which group a sequence ends in
    for group in torch.split(order, torch.unique_consecutive(filled, return_counts=True)[1].tolist()):
        chosen = lengths[group]
        at = torch.repeat_interleave(first[group] - (torch.cumsum(chosen, 0) - chosen), chosen)
        yield group, at + torch.arange(len(at), device=at.device)


def sequence_rows(ended: Tensor, sequence_length: int) -> tuple[Tensor, Tensor]:
    """Return the rows of all sequences, one after the other, and the lengths of the sequences.

    `ended` [num_steps, num_envs] says after which steps an episode ended. A row is a place in the flattened rollout,
    step by step. Sequences begin every `sequence_length` steps and after every end.
    """
    steps, envs = ended.shape
    begins = torch.zeros_like(ended)
    begins[::sequence_length] = True
    begins[1:] |= ended[:-1]
    rows = torch.arange(steps * envs, device=ended.device).view(steps, envs).T.flatten()  # environment by environment
    starts = torch.nonzero(begins.T.flatten()).squeeze(1)
    ends = torch.cat([starts[1:], starts.new_tensor([steps * envs])])
    return rows, ends - starts
