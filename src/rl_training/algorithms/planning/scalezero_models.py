"""ScaleZero's network in the form that the search needs, for the roots of one task or of several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rl_training.data.observations import Observation
from rl_training.models.encoders import DictEncoder, ImageEncoder, VectorEncoder
from rl_training.models.planning.planning_network import Prediction
from rl_training.models.planning.scalar_support import expected_scalar
from rl_training.models.planning.scalezero_network import ScaleZeroNetwork
from rl_training.search.model import ModelOutput
from rl_training.search.search import SearchResult


@dataclass(frozen=True)
class TaskView:
    """One task of the network, with the methods that batches need."""

    network: ScaleZeroNetwork
    task: int

    @property
    def encoder(self) -> VectorEncoder | ImageEncoder | DictEncoder:
        """The encoder of the task's observations."""
        return self.network.parts(self.task).encoder

    def values(self, observation: Observation) -> Tensor:
        """Return the values [B] of observations."""
        return self.network.values(self.task, observation)


class ScaleZeroModel:
    """Predicts with a cache: the embedding of a state is the transformer's cache of the path from the root to it.

    The roots of several tasks are searched as one batch, ordered by task; the actions that a task lacks compared to
    another follow its own and are illegal.
    """

    def __init__(self, network: ScaleZeroNetwork, tasks: Sequence[int], discount: float) -> None:
        self.network = network
        self.tasks = tuple(tasks)
        self.discount = discount
        self.actions = max(network.specs[task].actions for task in tasks)
        self._rows: list[int] = []  # roots of each task in the current search

    def initial(self, observation: Observation | Sequence[Observation]) -> ModelOutput:
        """Encode the observations at the roots, one batch per task; with a single task the batch may be given alone."""
        latent = torch.cat(self.encode(observation))
        cache = self.network.transformer.empty_cache(len(latent))
        return self._arrive(cache, latent, latent.new_zeros(len(latent)))

    def encode(self, observation: Observation | Sequence[Observation]) -> list[Tensor]:
        """Return the latents [rows, width] of each task."""
        batches = observation if isinstance(observation, (list, tuple)) else [observation]
        latents = [self.network.encode(task, part) for task, part in zip(self.tasks, batches, strict=True)]
        self._rows = [len(latent) for latent in latents]
        return latents

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Predict the states after one action [B] each."""
        network, cache = self.network, embedding.clone()
        by_task = zip(self.tasks, action.split(self._rows), strict=True)
        token = torch.cat([network.parts(task).embed(part) for task, part in by_task])
        output = network.transformer.extend(cache, token)
        by_task = zip(self.tasks, output.split(self._rows), strict=True)
        steps = [network.parts(task).imagine(part) for task, part in by_task]
        latent, reward = (torch.cat(parts) for parts in zip(*steps, strict=True))
        return self._arrive(cache, latent, expected_scalar(reward))

    def split(self, found: SearchResult) -> list[SearchResult]:
        """Return the search result of each task, without the actions that it does not have."""
        ends = np.cumsum(self._rows)
        by_task = [np.split(column, ends[:-1]) for column in found]
        counts = [self.network.specs[task].actions for task in self.tasks]
        return [
            SearchResult(*(part[:, :count] if part.ndim == 2 else part for part in parts))
            for *parts, count in zip(*by_task, counts, strict=True)
        ]

    def _arrive(self, cache: Tensor, latent: Tensor, reward: Tensor) -> ModelOutput:
        """Return the predictions for states [B, width] that follow the tokens in their caches."""
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
