"""The interface of a model for the search."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree


class ModelOutput(NamedTuple):
    """A model's predictions for a batch of states."""

    prior_logits: Tensor  # [B, A], minus infinity for illegal actions
    value: Tensor  # [B]
    reward: Tensor  # [B], of the step into the state; unused at a root
    discount: Tensor  # [B], of the state's value: 0 after termination, negative when the other player is to move
    embedding: Tensor  # [B, ...], the input of `recurrent` at this state


class SearchModel(Protocol):
    """A model to plan with, evaluated for all roots of a batch at once, one call per simulation."""

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the observations at the roots."""
        ...

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Predict the states after one action [B] each; the next simulation overwrites the buffer `embedding`."""
        ...


class SimulatingModel(Protocol):
    """A model that runs all simulations of a search itself."""

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the observations at the roots."""
        ...

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations on trees whose roots have been made."""
        ...


Searchable = SearchModel | SimulatingModel
"""Any model that a search accepts."""
