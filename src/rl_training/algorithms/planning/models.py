"""Planning networks in the form that the search needs."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.data.observations import Observation
from rl_training.models.planning.planning_network import PlanningNetwork
from rl_training.models.planning.scalar_support import expected_scalar
from rl_training.search.model import ModelOutput


class NetworkModel:
    """A model evaluated by torch, on any device."""

    def __init__(self, network: PlanningNetwork, discount: float) -> None:
        self.network = network
        self.discount = discount

    def initial(self, observation: Observation) -> ModelOutput:
        """Encode the observations at the roots."""
        return self._output(self.network.represent(observation))

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Predict the states after one action [B] each."""
        latent = self.network.imagine(embedding, action)
        return self._output(latent, expected_scalar(self.network.rewards(latent)))

    def _output(self, latent: Tensor, reward: Tensor | None = None) -> ModelOutput:
        predicted = self.network.predict(latent)
        value = expected_scalar(predicted.value)
        return ModelOutput(
            prior_logits=predicted.policy,
            value=value,
            reward=torch.zeros_like(value) if reward is None else reward,
            discount=torch.full_like(value, self.discount),
            embedding=latent,
        )


class PrefixModel(NetworkModel):
    """A model with a value prefix: the reward of an edge is the increase of the prefix along it.

    An embedding holds the latent, the recurrent cell's state, the prefix so far and the depth since the last reset.
    """

    def initial(self, observation: Observation) -> ModelOutput:
        """Encode the observations at the roots; the recurrent state is zero."""
        output = super().initial(observation)
        assert self.network.prefix is not None
        empty = output.embedding.new_zeros(len(output.embedding), 2 * self.network.prefix.size + 2)
        return output._replace(embedding=torch.cat((output.embedding, empty), 1))

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Predict the states after one action [B] each."""
        network = self.network
        cell = network.prefix
        assert cell is not None
        before, output, memory, known, depth = embedding.split((network.latent_size, cell.size, cell.size, 1, 1), dim=1)
        latent = network.imagine(before, action)
        output, memory = cell.step(latent, (output, memory))
        prefix = expected_scalar(network.reward(output))
        result = self._output(latent, prefix - known.squeeze(1))
        depth = depth + 1
        going = (depth < cell.horizon).to(latent.dtype)  # [B, 1], 0 where the cell is reset
        state = torch.cat((output, memory, prefix.unsqueeze(1), depth), 1) * going
        return result._replace(embedding=torch.cat((latent, state), 1))
