"""MuZero (Schrittwieser et al. 2020, arXiv 1911.08265): plan with a learned model and train on the search results."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.algorithms.base import PlanningAlgorithm
from rl_training.algorithms.planning.actions import actions_from_policy, actions_from_search
from rl_training.algorithms.planning.batches import BatchMaker, Bootstrap
from rl_training.algorithms.planning.models import NetworkModel, PrefixModel
from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.algorithms.planning.params import PlanningParams
from rl_training.algorithms.planning.unroll import UnrollBatch, muzero_loss
from rl_training.data.observations import Observation
from rl_training.experiment.cadence import marks_between
from rl_training.models.discrete import DiscreteActions
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters
from rl_training.models.planning.grid_network import GridNetwork
from rl_training.models.planning.planning_network import PlanningNetwork
from rl_training.search.gumbel import Gumbel
from rl_training.search.model import Searchable
from rl_training.search.puct import Puct
from rl_training.search.rule import Rule
from rl_training.search.search import SearchResult, TreeSearch
from rl_training.search.transforms import CompletedValues, NodeRange, TreeRange


def search_rule(params: PlanningParams) -> Rule:
    """Return the selection rule that the parameters name."""
    if params.search == "gumbel":
        transform = CompletedValues(epsilon=params.smallest_value_range)
        return Gumbel(max_considered=params.max_considered_actions, transform=transform)
    scale = NodeRange if params.value_normalization == "node" else TreeRange
    return Puct(dirichlet_alpha=params.dirichlet_alpha, transform=scale(epsilon=params.smallest_value_range))


def exploration(controls: Mapping[str, float], *, acting: bool = True) -> float:
    """Return the amount of noise at the root: the fraction of Dirichlet noise (PUCT) or the scale of Gumbel noise.

    The scale is that of acting; reanalysis, which would learn the action tried first, keeps the whole Gumbel noise.
    """
    return controls.get("root_exploration_fraction", controls.get("gumbel_scale", 1.0) if acting else 1.0)


class MuZero(PlanningAlgorithm):
    """Network, target network, optimizer and tree search."""

    params: MuZeroParams
    parts = ("network", "target_network", "optimizer", "updates")
    acting_networks = ("network",)

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the networks, the optimizer and the searches."""
        params = self.params
        self.actions = DiscreteActions(action_space)
        self.network: Any = self.make_network(observation_space, generator).to(self.device)
        self.target_network: Any = copy.deepcopy(self.network).requires_grad_(False)
        self.target_values = flatten_parameters(self.target_network.parameters())
        self.optimizer = FlatOptimizer(self.network.parameters(), "adam", eps=params.optimizer_eps)
        self.updates = 0
        self.search = TreeSearch(search_rule(params))
        self.target_search = TreeSearch(self.search.rule)
        self.model: Searchable = self.make_model(self.network)
        """The model that acting searches with."""
        self.target_model: Searchable = self.make_model(self.target_network)
        """The model that reanalysis searches with."""
        self.batches = BatchMaker(
            params, cast(Bootstrap, self.target_network), self.search_again, self.actions.count, self.device
        )

    def make_network(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the network: it encodes observations, predicts next latents, rewards, values and policies."""
        params = self.params
        encoder = self.make_encoder(observation_space, orthogonal=True, generator=generator)
        if params.grid is not None:
            return GridNetwork(
                encoder,
                self.actions.count,
                params.grid.shape,
                filters=params.grid.filters,
                blocks=params.grid.blocks,
                hidden_size=params.hidden_size,
                support_size=params.support_size,
                generator=generator,
            )
        return PlanningNetwork(
            encoder,
            self.actions.count,
            latent_size=params.latent_size,
            hidden_size=params.hidden_size,
            support_size=params.support_size,
            projection_size=params.latent_size if params.consistency_coef > 0 else None,
            prefix_size=params.hidden_size if params.value_prefix else None,
            prefix_horizon=params.value_prefix_horizon,
            generator=generator,
        )

    def make_model(self, network: Any) -> Searchable:
        """Return a network in the form that the search needs."""
        kind = PrefixModel if self.params.value_prefix else NetworkModel
        return kind(network, self.params.discount)

    def plan(
        self,
        observation: Observation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: np.random.Generator,
    ) -> SearchResult:
        """Search from the observations of all environments, with exploration noise."""
        return self.search.run(
            self.model,
            observation,
            legal=mask,
            num_simulations=int(controls["num_simulations"]),
            exploration=exploration(controls),
            temperature=controls.get("temperature", 0.0),
            generator=generator,
        )

    def search_again(self, observation: Observation, **settings: Any) -> SearchResult:
        """Search from stored observations with the target network (reanalysis)."""
        return self.target_search.run(self.target_model, observation, **settings)

    @torch.inference_mode()
    def choose(
        self,
        observation: Observation,
        mask: Tensor | None,
        generator: torch.Generator | None,
        num_simulations: int | None = None,
    ) -> Tensor:
        """Return the best actions of the policy network, or of a search if `num_simulations` is given.

        If a generator is given, actions are sampled from that policy instead.
        """
        if num_simulations is None:
            logits = self.network.predict(self.network.represent(observation)).policy
            return actions_from_policy(logits, mask, generator)
        found = self.search.run(
            self.model,
            observation,
            legal=None if mask is None else mask.cpu().numpy(),
            num_simulations=num_simulations,
            exploration=0.0,
            generator=np.random.default_rng(0),  # unused: exploration is 0
        )
        return actions_from_search(found, self.device, generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions as the environment numbers them, from the space's `start`."""
        return self.actions.to_env(action)

    def loss(self, batch: UnrollBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the unrolled model, and its parts as metrics."""
        return muzero_loss(self.network, batch, self.params)

    def gradient(self, batch: UnrollBatch) -> dict[str, Tensor]:
        """Overwrite the optimizer's gradient by that of the loss and return the loss's parts as metrics."""
        loss, metrics = self.loss(batch)
        self.optimizer.backward(loss)
        return metrics

    def update(
        self, batch: UnrollBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Make one gradient step and return metrics."""
        metrics = self.gradient(batch)
        metrics["gradient_norm"] = self.optimizer.descend(
            learning_rate=controls["learning_rate"], max_grad_norm=self.params.max_grad_norm
        )
        self.updates += 1
        return metrics

    def steps_taken(self, before: int, after: int) -> None:
        """Copy the network to the target network whenever the step count passes a multiple of the interval."""
        if marks_between(before, after, self.params.target_update_interval):
            with torch.no_grad():
                self.target_values.copy_(self.optimizer.values)
