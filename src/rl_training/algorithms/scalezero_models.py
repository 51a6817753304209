"""ScaleZero's network in the form that the search takes it, for roots of one task or of several at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from rl_training.data.observations import Observation
from rl_training.models.planning_network import Prediction
from rl_training.models.scalar_support import expected_scalar
from rl_training.models.scalezero_network import ScaleZeroNetwork
from rl_training.search.model import ModelOutput


class ScaleZeroModel:
    """Imagines with a cache: a state's embedding is the transformer's memory of the path from the root to it.

    The roots of several tasks are searched as one batch, ordered by task; a task with fewer actions than another has
    illegal ones after its own.
    """

    def __init__(self, network: ScaleZeroNetwork, tasks: Sequence[int], discount: float) -> None:
        self.network = network
        self.tasks = tuple(tasks)
        self.discount = discount
        self.actions = max(network.specs[task].actions for task in tasks)
        self._rows: list[int] = []  # of each task in the search that `initial` began

    def initial(self, observation: Sequence[Observation]) -> ModelOutput:
        """Encode the roots' observations, one batch for each of the tasks."""
        latents = [self.network.encode(task, part) for task, part in zip(self.tasks, observation, strict=True)]
        self._rows = [len(latent) for latent in latents]
        latent = torch.cat(latents)
        cache = self.network.transformer.empty_cache(len(latent))
        return self._arrive(cache, latent, latent.new_zeros(len(latent)))

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Imagine one action [B] in each state."""
        network, cache = self.network, embedding.clone()
        by_task = zip(self.tasks, action.split(self._rows), strict=True)
        token = torch.cat([network.parts(task).embed(part) for task, part in by_task])
        output = network.transformer.extend(cache, token)
        by_task = zip(self.tasks, output.split(self._rows), strict=True)
        steps = [network.parts(task).imagine(part) for task, part in by_task]
        latent, reward = (torch.cat(parts) for parts in zip(*steps, strict=True))
        return self._arrive(cache, latent, expected_scalar(reward))

    def _arrive(self, cache: Tensor, latent: Tensor, reward: Tensor) -> ModelOutput:
        """Say what is to be said of states [B, width] after what their caches hold."""
        output = self.network.transformer.extend(cache, latent)
        by_task = zip(self.tasks, output.split(self._rows), strict=True)
        predicted = [self._padded(self.network.parts(task).predict(part)) for task, part in by_task]
        policy, value = (torch.cat(parts) for parts in zip(*predicted, strict=True))
        number = expected_scalar(value)
        return ModelOutput(
            prior_logits=policy,
            value=number,
            reward=reward,
            discount=torch.full_like(number, self.discount),
            embedding=cache,
        )

    def _padded(self, predicted: Prediction) -> Prediction:
        missing = self.actions - predicted.policy.shape[1]
        if missing == 0:
            return predicted
        return predicted._replace(policy=functional.pad(predicted.policy, (0, missing), value=-torch.inf))
