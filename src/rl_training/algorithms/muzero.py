"""MuZero (Schrittwieser et al. 2020, arXiv 1911.08265) and the options that make its relatives of it.

Gumbel MuZero (Danihelka et al. 2022) searches by sequential halving and learns from the improved policy; EfficientZero
(Ye et al. 2021, arXiv 2111.00210) adds a value prefix, consistency of imagined latents and off-policy correction.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.muzero_loss import UnrollBatch, muzero_loss
from rl_training.algorithms.muzero_params import MuZeroParams
from rl_training.algorithms.planning_actions import actions_by_policy, actions_by_search
from rl_training.algorithms.planning_batches import BatchMaker
from rl_training.algorithms.planning_models import search_model
from rl_training.algorithms.planning_params import PlanningParams
from rl_training.algorithms.weights import load_parts
from rl_training.data.observations import Observation
from rl_training.models.discrete import DiscreteActions
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters
from rl_training.models.planning_network import PlanningNetwork
from rl_training.search.mlp import MLPModel
from rl_training.search.rules import CompletedValues, Gumbel, NodeRange, Puct, Rule, TreeRange
from rl_training.search.search import SearchResult, TreeSearch


def search_rule(params: PlanningParams) -> Rule:
    """Return the rule that the parameters ask for."""
    if params.search == "gumbel":
        transform = CompletedValues(epsilon=params.smallest_value_range)
        return Gumbel(max_considered=params.max_considered_actions, transform=transform)
    scale = NodeRange if params.value_normalization == "node" else TreeRange
    return Puct(dirichlet_alpha=params.dirichlet_alpha, transform=scale(epsilon=params.smallest_value_range))


def exploration(controls: Mapping[str, float]) -> float:
    """Return how much noise enters the root: PUCT's share of it, or all of Gumbel's."""
    return controls.get("root_exploration_fraction", 1.0)


class MuZero:
    """The model, its slower copy for targets, their optimizer, and the search over them."""

    plans = True

    def __init__(
        self,
        params: MuZeroParams,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.params = params
        self.device = device
        self.actions = DiscreteActions(action_space)
        self.network = PlanningNetwork(
            observation_space,
            self.actions.count,
            latent_size=params.latent_size,
            hidden_size=params.hidden_size,
            support_size=params.support_size,
            projection_size=params.latent_size if params.consistency_coef > 0 else None,
            prefix_size=params.hidden_size if params.value_prefix else None,
            prefix_horizon=params.value_prefix_horizon,
            generator=generator,
        ).to(device)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.target_values = flatten_parameters(self.target_network.parameters())
        self.optimizer = FlatOptimizer(self.network.parameters(), "adam", eps=params.optimizer_eps)
        self.updates = 0
        self.search = TreeSearch(search_rule(params))
        self._model = search_model(self.network, params.discount, device)
        self._target_model = search_model(self.target_network, params.discount, device)
        self._stale = False  # whether the compiled search's weights are older than the network's
        self.batches = BatchMaker(
            params, self.target_network, self._target_model, TreeSearch(self.search.rule), self.actions.count, device
        )

    def plan(
        self,
        observation: Observation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: np.random.Generator,
    ) -> SearchResult:
        """Search with exploration from the observations of all environments."""
        return self._search(
            observation,
            mask,
            num_simulations=int(controls["num_simulations"]),
            exploration=exploration(controls),
            temperature=controls.get("temperature", 0.0),
            generator=generator,
        )

    def _search(self, observation: Observation, mask: np.ndarray | None, **settings: Any) -> SearchResult:
        if self._stale and isinstance(self._model, MLPModel):
            self._model.refresh()
        self._stale = False
        return self.search.run(self._model, observation, legal=mask, **settings)

    @torch.inference_mode()
    def choose(
        self,
        observation: Observation,
        mask: Tensor | None,
        generator: torch.Generator | None,
        num_simulations: int | None = None,
    ) -> Tensor:
        """Return the best actions by the policy network, or by a search where `num_simulations` are given.

        With a generator they are drawn: from the policy, or from the search's policy.
        """
        if num_simulations is None:
            logits = self.network.predict(self.network.represent(observation)).policy
            return actions_by_policy(logits, mask, generator)
        found = self._search(
            observation,
            None if mask is None else mask.cpu().numpy(),
            num_simulations=num_simulations,
            exploration=0.0,
            generator=np.random.default_rng(0),  # nothing is drawn
        )
        return actions_by_search(found, self.device, generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions counted from the space's start."""
        return self.actions.to_env(action)

    def update(self, batch: UnrollBatch, controls: Mapping[str, float]) -> dict[str, Tensor]:
        """Make one gradient step and return metrics."""
        loss, metrics = muzero_loss(self.network, batch, self.params)
        metrics["gradient_norm"] = self.optimizer.step(
            loss, learning_rate=controls["learning_rate"], max_grad_norm=self.params.max_grad_norm
        )
        self._stale = True
        self.updates += 1
        if self.updates % self.params.target_update_interval == 0:
            self.target_values.copy_(self.optimizer.values)
            self._refresh_target()
        return metrics

    def _refresh_target(self) -> None:
        if isinstance(self._target_model, MLPModel):
            self._target_model.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on."""
        return {
            "network": self.network.state_dict(),
            "target_network": self.target_network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""
        self.network.load_state_dict(state["network"])
        self.target_network.load_state_dict(state["target_network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        self._stale = True
        self._refresh_target()

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over what a saved state has learned; optimizers and counters stay as they are."""
        load_parts(self, state, ("network", "target_network"))
