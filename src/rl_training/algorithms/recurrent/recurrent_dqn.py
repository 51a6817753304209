"""Deep Q-learning with a memory (R2D2: Kapturowski et al. 2019), by the loss of deep Q-learning over sequences.

Each sequence begins with the memory that acting had there, brought up to date over some steps without gradients. The
target network gets the same stored memory and the same burn-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.algorithms.dqn import DQN, EVALUATION_EPSILON, dqn_loss, expected_values, legal_values
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.data.sequence_replay import SequenceBatch
from rl_training.models.recurrent import RecurrentQNetwork, Sequences

LARGEST_ERROR_SHARE = 0.9  # of a sequence's priority; the rest is the mean error of its steps (R2D2)


class _Unrolled:
    """A network's outputs for all rows of sequences, in the place of the network: rows are what it observes."""

    def __init__(self, outputs: Tensor) -> None:
        self.outputs = outputs

    def forward(self, rows: Tensor, noisy: bool) -> Tensor:
        """Return the outputs [T, actions, outputs] of rows [T]."""
        return self.outputs[rows]


class RecurrentDQN(DQN):
    """Deep Q-learning whose networks remember."""

    acting_networks = ("model",)

    def make_model(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the network: it maps observations and memories to outputs [B, actions, outputs] and memories."""
        params, recurrent = self.params, self.params.recurrent
        assert recurrent is not None
        return RecurrentQNetwork(
            self.make_encoder(observation_space, orthogonal=False, generator=generator),
            self.actions.count,
            kind=recurrent.type,
            size=recurrent.size,
            layers=recurrent.layers,
            chrono_init=recurrent.chrono_init,
            outputs=params.outputs_per_action,
            hidden_sizes=params.hidden_sizes,
            activation=params.activation,
            dueling=params.dueling,
            noisy=params.noisy,
            generator=generator,
        )

    @property
    def memory_size(self) -> int:
        """Numbers that an environment's memory consists of."""
        size: int = self.model.memory_size
        return size

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the model does not return outputs per action."""
        rows = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        outputs, _ = self.model.step(observation, torch.zeros(rows, self.memory_size, device=self.device))
        check_shape(self.model, "outputs", outputs, ROWS, self.actions.count, self.params.outputs_per_action)

    @torch.inference_mode()
    def act_with_memory(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
        memory: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the actions [num_envs] of `act`, and the memories after them."""
        if self.params.noisy:
            self.model.resample(generator)
        action, after = self._best_with_memory(observation, mask, memory, noisy=self.params.noisy)
        return self.explored(action, mask, controls, generator), after

    @torch.inference_mode()
    def choose_with_memory(
        self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the greedy actions, 5 % of them random if a generator is given, and the memories after them."""
        action, after = self._best_with_memory(observation, mask, memory, noisy=False)
        chosen = action if generator is None else self._explore(action, mask, EVALUATION_EPSILON, generator)
        return chosen, after

    @torch.no_grad()
    def env_log_prob_with_memory(
        self, observation: Observation, mask: Tensor | None, action: np.ndarray, memory: Tensor
    ) -> Tensor | None:
        """Return the log-probabilities [B] of actions as the environment numbers them, 5 % of which are random."""
        best, _ = self._best_with_memory(observation, mask, memory, noisy=False)
        return self._log_prob_around(best, mask, action)

    def _best_with_memory(
        self, observation: Observation, mask: Tensor | None, memory: Tensor, *, noisy: bool
    ) -> tuple[Tensor, Tensor]:
        outputs, after = self.model.step(observation, memory, noisy)
        values = expected_values(outputs, self.params.distribution, self.support)
        return legal_values(values, mask).argmax(dim=1), after

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss of sequences, each the mean over its steps, and metrics.

        Sequences are drawn in proportion to their lengths, so that every step counts the same in expectation.
        """
        assert isinstance(batch, SequenceBatch)
        with torch.no_grad():
            target: Any = _Unrolled(self.unroll(self.target_model, batch))
        online: Any = _Unrolled(self.unroll(self.model, batch))
        steps = torch.bincount(batch.sequence)
        weight = batch.weight * (len(batch.sequence) / len(steps)) / steps
        transitions = ReplayBatch(
            observation=batch.row,
            action=batch.action,
            reward=batch.reward,
            discount=batch.discount,
            next_observation=batch.next_row,
            weight=weight[batch.sequence],
            next_mask=batch.next_mask,
        )
        loss, errors, value = dqn_loss(online, target, transitions, self.support, self.params)
        metrics = {"loss_q": loss.detach(), "q_mean": value}
        if self.params.prioritized:
            assert errors is not None
            metrics["td_error"] = sequence_errors(errors, batch.sequence)
        return loss, metrics

    def unroll(self, model: RecurrentQNetwork, batch: SequenceBatch) -> Tensor:
        """Return a network's outputs [R, actions, outputs] for the rows of sequences, after the burn-in."""
        with torch.no_grad():
            memory = model.memory_after(batch.earlier, Sequences(batch.earlier_lengths, batch.memory))
        return model.run(batch.observation, Sequences(batch.lengths, memory), self.params.noisy)


def sequence_errors(errors: Tensor, sequence: Tensor) -> Tensor:
    """Return for each step [T] the error of its sequence: between the largest and the mean of its steps' errors."""
    steps = torch.bincount(sequence)
    mean = torch.zeros_like(steps, dtype=errors.dtype).index_add(0, sequence, errors) / steps
    largest = torch.zeros_like(mean).scatter_reduce(0, sequence, errors, "amax")
    return (LARGEST_ERROR_SHARE * largest + (1 - LARGEST_ERROR_SHARE) * mean)[sequence]
