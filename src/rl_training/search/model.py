"""What a search asks of a model."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree


class ModelOutput(NamedTuple):
    """What a model says of a batch of states."""

    prior_logits: Tensor  # [B, A], minus infinity for actions known to be illegal
    value: Tensor  # [B]
    reward: Tensor  # [B], of the step into the state; unused at a root
    discount: Tensor  # [B], of the state's value: 0 after termination, negative when the other player is to move
    embedding: Tensor  # [B, ...], all that `recurrent` needs to go on from the state


class SearchModel(Protocol):
    """A model to plan with, evaluated for all roots of a batch at once, one call per simulation."""

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the roots' observations."""
        ...

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Take one action [B] in each state; the embedding is a buffer that the next simulation overwrites."""
        ...


class SimulatingModel(Protocol):
    """A model that runs all simulations of a search by itself."""

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the roots' observations."""
        ...

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Grow trees, whose roots are made, to their full size."""
        ...


Searchable = SearchModel | SimulatingModel
"""What a search takes."""
