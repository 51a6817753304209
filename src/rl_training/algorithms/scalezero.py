"""ScaleZero (Pu et al. 2025, arXiv 2509.07945): one planning model for many tasks.

All tasks share a transformer world model with a mixture of experts; each task has its own encoder, actions and heads.
`runtime.parameter_scaling` decides which tasks and which part of the transformer are trained.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.algorithms.base import PlanningAlgorithm
from rl_training.algorithms.muzero import exploration, search_rule
from rl_training.algorithms.planning.actions import actions_from_policy, actions_from_search
from rl_training.algorithms.planning.batches import BatchMaker
from rl_training.algorithms.planning.scalezero_loss import LossWeights, scalezero_loss
from rl_training.algorithms.planning.scalezero_models import ScaleZeroModel, TaskView
from rl_training.algorithms.planning.scalezero_params import ScaleZeroParams
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.data.observations import Observation
from rl_training.experiment.cadence import marks_between
from rl_training.models.discrete import DiscreteActions
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters
from rl_training.models.planning.adapters import (
    activate_adapters,
    fold_adapters,
    freeze_for_stage,
    merged_weights,
    trainable_parameters,
)
from rl_training.models.planning.scalezero_network import ScaleZeroNetwork, TaskSpec
from rl_training.search.model import Searchable
from rl_training.search.search import SearchResult, TreeSearch


def make_network(params: ScaleZeroParams, tasks: Sequence[TaskSpec], generator: torch.Generator) -> ScaleZeroNetwork:
    """Return a network with the sizes given by the parameters."""
    return ScaleZeroNetwork(
        tasks,
        width=params.width,
        layers=params.layers,
        heads=params.heads,
        context_steps=params.context_steps,
        expert_size=params.expert_size,
        experts=params.experts,
        top_k=params.top_k,
        adapters=params.adapters,
        adapter_rank=params.adapter_rank,
        hidden_size=params.hidden_size,
        support_size=params.support_size,
        generator=generator,
    )


class ScaleZero(PlanningAlgorithm):
    """Network of all tasks, target network, optimizer and tree search."""

    params: ScaleZeroParams
    parts = ("network", "target_network", "optimizer", "updates", "stage", "trained")

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the networks, the optimizer and the searches; the spaces are Dicts with one entry per task."""
        assert isinstance(observation_space, spaces.Dict)
        assert isinstance(action_space, spaces.Dict)
        params = self.params
        self.names = tuple(observation_space.spaces)
        self.actions = [DiscreteActions(action_space[name]) for name in self.names]
        tasks = [
            TaskSpec(name, observation_space[name], actions.count)
            for name, actions in zip(self.names, self.actions, strict=True)
        ]
        self.network: Any = self.make_network(tasks, generator).to(self.device)
        self.target_network: Any = copy.deepcopy(self.network).requires_grad_(False)
        self.target_values = flatten_parameters(self.target_network.parameters())
        self.optimizer = FlatOptimizer(self.network.parameters(), "adam", eps=params.optimizer_eps)
        self.weights = LossWeights(
            latent=params.latent_coef,
            reward=params.reward_coef,
            value=params.value_coef,
            entropy=params.entropy_coef,
            balance=params.balance_coef,
        )
        self.updates = 0
        self.stage = 0
        self.trained: Sequence[int] = tuple(range(len(self.names)))
        """Indices of the tasks that are collected and learned from."""
        self.search = TreeSearch(search_rule(params))
        self.target_search = TreeSearch(self.search.rule)
        self.batches = [
            BatchMaker(
                params,
                TaskView(cast(ScaleZeroNetwork, self.target_network), task),
                partial(self.search_again, task),
                actions.count,
                self.device,
            )
            for task, actions in enumerate(self.actions)
        ]

    def make_network(self, tasks: Sequence[TaskSpec], generator: torch.Generator) -> nn.Module:
        """Return the network of all tasks."""
        return make_network(self.params, tasks, generator)

    def simulated(self, model: ScaleZeroModel) -> Searchable:
        """Return the object that runs a model's simulations in a search: the model itself, one call per simulation."""
        return model

    def plan(
        self,
        shown: Sequence[tuple[Observation, np.ndarray | None]],
        controls: Mapping[str, float],
        generator: np.random.Generator,
    ) -> list[SearchResult]:
        """Search, with exploration noise, from the observations of all tasks in training, in one batch."""
        return self.search_tasks(
            self.trained,
            shown,
            num_simulations=int(controls["num_simulations"]),
            exploration=exploration(controls),
            temperature=controls.get("temperature", 0.0),
            generator=generator,
        )

    @torch.inference_mode()
    def search_tasks(
        self, tasks: Sequence[int], shown: Sequence[tuple[Observation, np.ndarray | None]], **settings: Any
    ) -> list[SearchResult]:
        """Search from observations and legal actions of some tasks, and return one search result per task."""
        model = ScaleZeroModel(self.network, tasks, self.params.discount)
        observations, masks = zip(*shown, strict=True)
        legal = self._legal(model, observations, masks)
        with merged_weights(self.network.transformer):
            found = self.search.run(self.simulated(model), observations, legal=legal, **settings)
        return model.split(found)

    def search_again(self, task: int, observation: Observation, **settings: Any) -> SearchResult:
        """Search from stored observations of one task with the target network (reanalysis)."""
        model = ScaleZeroModel(self.target_network, (task,), self.params.discount)
        return self.target_search.run(self.simulated(model), observation, **settings)

    def _legal(
        self, model: ScaleZeroModel, observations: Sequence[Observation], masks: Sequence[np.ndarray | None]
    ) -> np.ndarray | None:
        """Return the legal actions at all roots, [rows of all tasks, most actions]; None if no task has a mask."""
        if all(mask is None for mask in masks):
            return None
        parts = []
        for observation, mask in zip(observations, masks, strict=True):
            rows = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
            part = np.ones((rows, model.actions), bool)  # the model itself excludes actions that a task lacks
            if mask is not None:
                part[:, : mask.shape[1]] = mask
            parts.append(part)
        return np.concatenate(parts)

    def actor(self, name: str) -> TaskActor:
        """Return an actor for one task."""
        return TaskActor(self, self.names.index(name))

    def loss(self, batch: Mapping[int, UnrollBatch]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and metrics of batches of several tasks, keyed by task index."""
        return scalezero_loss(self.network, self.target_network, batch, self.weights)

    def update(
        self, batch: Mapping[int, UnrollBatch], controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Make one gradient step on batches of several tasks, keyed by task index, and return metrics."""
        loss, metrics = self.loss(batch)
        metrics["gradient_norm"] = self.optimizer.step(
            loss, learning_rate=controls["learning_rate"], max_grad_norm=self.params.max_grad_norm
        )
        self.updates += 1
        return metrics

    def steps_taken(self, before: int, after: int) -> None:
        """Copy the network to the target network whenever the step count passes a multiple of the interval."""
        if marks_between(before, after, self.params.target_update_interval):
            with torch.no_grad():
                self.target_values.copy_(self.optimizer.values)

    def train_only(self, tasks: Sequence[int]) -> None:
        """Collect and learn from these tasks alone; the encoders and heads of the others stay as they are."""
        for task in set(self.trained) - set(tasks):
            # Adam's momentum would go on moving weights that get no gradient.
            self.optimizer.restart(self.network.parts(task).parameters())
        if set(tasks) - set(self.trained):
            # A returning task has no moments yet: with the shared step count its first steps would be huge.
            self.optimizer.restart()
        self.trained = tuple(tasks)

    def enter_stage(self, stage: int) -> None:
        """Train the backbone (stage 0) or only its stage-th adapter from now on; no output changes."""
        freeze_for_stage(self.network.transformer, stage)
        activate_adapters(self.target_network.transformer, stage)
        self.optimizer.restart()
        self.stage = stage

    @property
    def trainable_parameters(self) -> int:
        """Number of weights that are trained at present."""
        own = sum(trainable_parameters(self.network.parts(task)) for task in self.trained)
        return own + trainable_parameters(self.network.transformer)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on."""
        return {**super().state_dict(), "trained": list(self.trained)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.enter_stage(state["stage"])
        super().load_state_dict(state)
        self.trained = tuple(state["trained"])

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Load the learned weights of a saved state, with its adapters merged into the weights they belong to.

        Optimizer and counters stay as they are, and training starts in stage 0 with new adapters.
        """
        self.enter_stage(state["stage"])
        super().load_weights(state)
        for network in (self.network, self.target_network):
            fold_adapters(network)
        self.enter_stage(0)


@dataclass(frozen=True)
class TaskActor:
    """Acts in one task of the shared model."""

    algorithm: ScaleZero
    task: int

    plans = True

    @property
    def device(self) -> torch.device:
        """The network's device."""
        return self.algorithm.device

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
            return actions_from_policy(self.algorithm.network.predict(self.task, observation).policy, mask, generator)
        (found,) = self.algorithm.search_tasks(
            (self.task,),
            [(observation, None if mask is None else mask.cpu().numpy())],
            num_simulations=num_simulations,
            exploration=0.0,
            generator=np.random.default_rng(0),  # unused: exploration is 0
        )
        return actions_from_search(found, self.device, generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions as the environment numbers them, from the space's `start`."""
        return self.algorithm.actions[self.task].to_env(action)
