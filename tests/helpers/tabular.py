"""Tabular models to search in: as torch, and as a perceptron whose latent says which edge was taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.kernels.search.perceptron_layout import Dense
from rl_training.kernels.search.perceptron_model import MLPModel
from rl_training.search.model import ModelOutput


@dataclass
class TabularModel:
    """A Markov decision process in tables; an observation is a state's number."""

    next_state: Tensor  # [S, A]
    reward: Tensor  # [S, A]
    value: Tensor  # [S]
    logits: Tensor  # [S, A]
    discount: Tensor  # [S, A]

    @classmethod
    def of(cls, **tables: Any) -> TabularModel:
        """Make it from lists or arrays."""
        kinds = {"next_state": torch.int64}
        return cls(
            **{name: torch.as_tensor(table, dtype=kinds.get(name, torch.float32)) for name, table in tables.items()}
        )

    def initial(self, observation: Any) -> ModelOutput:
        state = torch.as_tensor(observation)
        nothing = torch.zeros(len(state))
        return ModelOutput(self.logits[state], self.value[state], nothing, nothing, state)

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        state = self.next_state[embedding, action]
        reward, discount = self.reward[embedding, action], self.discount[embedding, action]
        return ModelOutput(self.logits[state], self.value[state], reward, discount, state)


def as_perceptron(table: TabularModel) -> MLPModel:
    """Return the same model as a perceptron.

    The latent has a unit per edge (s, a), of which the one just taken is on; S further units stand for roots. The first
    layer turns on unit (s', a') when both the latent's edge leads to s' and the action is a'.
    """
    states, actions = table.next_state.shape
    edges = states * actions
    leads = torch.zeros(edges + states, states)
    leads[torch.arange(edges), table.next_state.reshape(-1)] = 1.0
    leads[torch.arange(edges, edges + states), torch.arange(states)] = 1.0
    into = torch.zeros(edges + states, edges + states)  # [next latent, latent]
    into[:edges] = leads.repeat_interleave(actions, 1).T
    bias = torch.full((edges + states,), -1.0)
    rows = torch.zeros(actions, edges + states)
    rows[:, :edges] = torch.eye(actions).repeat(1, states)

    def head(of_edges: Tensor, of_roots: Tensor) -> list[Dense]:
        return [Dense(torch.cat((of_edges, of_roots)).T.contiguous(), torch.zeros(of_edges.shape[1]))]

    def represent(observation: Any) -> Tensor:
        return torch.nn.functional.one_hot(torch.as_tensor(observation) + edges, edges + states).float()

    def initial(observation: Any) -> ModelOutput:
        return table.initial(observation)._replace(embedding=represent(observation))

    ahead, nothing = table.next_state.reshape(-1), torch.zeros(states, 1)
    model = MLPModel(
        represent,
        action_rows=rows,
        dynamics=[Dense(into, bias, "relu")],
        reward=head(table.reward.reshape(-1, 1), nothing),
        value=head(table.value[ahead][:, None], table.value[:, None]),
        policy=head(table.logits[ahead], table.logits),
        discount=head(table.discount.reshape(-1, 1), nothing),
    )
    if not table.logits.isfinite().all():  # in a product, infinity times 0 is not a number
        model.initial = initial  # type: ignore[method-assign]
    return model


def random_model(seed: int, states: int = 12, actions: int = 3) -> TabularModel:
    """Return a model of random numbers."""
    random = np.random.default_rng(seed)
    return TabularModel.of(
        next_state=random.integers(states, size=(states, actions)),
        reward=random.normal(size=(states, actions)),
        value=random.normal(size=states),
        logits=random.normal(size=(states, actions)),
        discount=np.full((states, actions), 0.9),
    )
