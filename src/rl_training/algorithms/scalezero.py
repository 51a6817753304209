"""ScaleZero (Pu et al. 2025, arXiv 2509.07945): one planning model for many tasks.

A transformer world model with experts is shared by all tasks, around it each has its own encoder, actions and heads.
Which tasks are trained, and which part of the transformer, is decided from outside (`runtime.parameter_scaling`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.algorithms.muzero import exploration, search_rule
from rl_training.algorithms.muzero_loss import UnrollBatch
from rl_training.algorithms.planning_actions import actions_by_policy, actions_by_search
from rl_training.algorithms.planning_batches import BatchMaker
from rl_training.algorithms.scalezero_loss import LossWeights, scalezero_loss
from rl_training.algorithms.scalezero_models import ScaleZeroModel, TaskView, compiled_transformer, fastest_model
from rl_training.algorithms.scalezero_params import ScaleZeroParams
from rl_training.algorithms.weights import load_parts
from rl_training.data.observations import Observation
from rl_training.models.adapters import (
    activate_adapters,
    fold_adapters,
    freeze_for_stage,
    merged_weights,
    trainable_parameters,
)
from rl_training.models.discrete import DiscreteActions
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters
from rl_training.models.scalezero_network import ScaleZeroNetwork, TaskSpec
from rl_training.search.search import SearchResult, TreeSearch
from rl_training.search.transformer import Transformer


def make_network(params: ScaleZeroParams, tasks: Sequence[TaskSpec], generator: torch.Generator) -> ScaleZeroNetwork:
    """Return the network of the parameters' sizes."""
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


class ScaleZero:
    """The shared model, its slower copy for targets, their optimizer, and the search over them."""

    def __init__(
        self,
        params: ScaleZeroParams,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        """The spaces are Dicts with one entry per task, in the tasks' order."""
        assert isinstance(observation_space, spaces.Dict)
        assert isinstance(action_space, spaces.Dict)
        self.params = params
        self.device = device
        self.names = tuple(observation_space.spaces)
        self.actions = [DiscreteActions(action_space[name]) for name in self.names]
        tasks = [
            TaskSpec(name, observation_space[name], actions.count)
            for name, actions in zip(self.names, self.actions, strict=True)
        ]
        self.network = make_network(params, tasks, generator).to(device)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
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
        self.trained = tuple(range(len(self.names)))
        """The numbers of the tasks that are collected and learned from."""
        rule = search_rule(params)
        self.search = TreeSearch(rule)
        self._compiled: Transformer | None = None
        self._compiled_target: Transformer | None = None
        if device.type == "cpu":
            self._compiled = compiled_transformer(self.network, params.discount)
            self._compiled_target = compiled_transformer(self.target_network, params.discount)
        self.batches = [
            BatchMaker(
                params,
                TaskView(self.target_network, task),
                fastest_model(ScaleZeroModel(self.target_network, (task,), params.discount), self._compiled_target),
                TreeSearch(rule),
                actions.count,
                device,
            )
            for task, actions in enumerate(self.actions)
        ]

    def plan(
        self,
        shown: Sequence[tuple[Observation, np.ndarray | None]],
        controls: Mapping[str, float],
        generator: np.random.Generator,
    ) -> list[SearchResult]:
        """Search with exploration from what the environments of all trained tasks show, in one batch."""
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
        """Search from observations of some tasks, with what is legal in them, and return the findings by task."""
        model = ScaleZeroModel(self.network, tasks, self.params.discount)
        observations, masks = zip(*shown, strict=True)
        legal = self._legal(model, observations, masks)
        # The compiled search has the adapters in its weights already.
        with merged_weights(self.network.transformer) if self._compiled is None else nullcontext():
            found = self.search.run(fastest_model(model, self._compiled), observations, legal=legal, **settings)
        return model.split(found)

    def _legal(
        self, model: ScaleZeroModel, observations: Sequence[Observation], masks: Sequence[np.ndarray | None]
    ) -> np.ndarray | None:
        """Return what is legal at all roots, [rows of all tasks, most actions]; None where no task has a mask."""
        if all(mask is None for mask in masks):
            return None
        parts = []
        for observation, mask in zip(observations, masks, strict=True):
            rows = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
            part = np.ones((rows, model.actions), bool)  # actions that a task lacks are excluded by the model
            if mask is not None:
                part[:, : mask.shape[1]] = mask
            parts.append(part)
        return np.concatenate(parts)

    def actor(self, name: str) -> TaskActor:
        """Return what acts in one task."""
        return TaskActor(self, self.names.index(name))

    def update(self, batches: Mapping[int, UnrollBatch], controls: Mapping[str, float]) -> dict[str, Tensor]:
        """Make one gradient step on batches of several tasks, given by their numbers, and return metrics."""
        loss, metrics = scalezero_loss(self.network, self.target_network, batches, self.weights)
        metrics["gradient_norm"] = self.optimizer.step(
            loss, learning_rate=controls["learning_rate"], max_grad_norm=self.params.max_grad_norm
        )
        _expire(self._compiled)
        self.updates += 1
        if self.updates % self.params.target_update_interval == 0:
            self.target_values.copy_(self.optimizer.values)
            _expire(self._compiled_target)
        return metrics

    def train_only(self, tasks: Sequence[int]) -> None:
        """Collect and learn from these tasks alone; what the others have for themselves stays as it is."""
        for task in set(self.trained) - set(tasks):
            # Momentum would go on moving what gets no gradient.
            self.optimizer.restart(self.network.parts(task).parameters())
        if set(tasks) - set(self.trained):
            # A task that comes back has no moments yet: with the others' count of steps its first ones would be huge.
            self.optimizer.restart()
        self.trained = tuple(tasks)

    def enter_stage(self, stage: int) -> None:
        """Train the backbone (stage 0) or only its stage-th adapter from now on; no output changes."""
        freeze_for_stage(self.network.transformer, stage)
        activate_adapters(self.target_network.transformer, stage)
        _expire(self._compiled, self._compiled_target)
        self.optimizer.restart()
        self.stage = stage

    @property
    def trainable_parameters(self) -> int:
        """How many numbers training may change at the moment."""
        own = sum(trainable_parameters(self.network.parts(task)) for task in self.trained)
        return own + trainable_parameters(self.network.transformer)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on."""
        return {
            "network": self.network.state_dict(),
            "target_network": self.target_network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "stage": self.stage,
            "trained": list(self.trained),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""
        self.enter_stage(state["stage"])
        self.network.load_state_dict(state["network"])
        self.target_network.load_state_dict(state["target_network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        self.trained = tuple(state["trained"])
        _expire(self._compiled, self._compiled_target)

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over what a saved state has learned, its adapters within the weights they belong to.

        Optimizer and counters stay as they are, and the first stage begins: adapters join anew.
        """
        load_parts(self, state, ("network", "target_network", "stage"))
        for network in (self.network, self.target_network):
            fold_adapters(network)
        self.enter_stage(0)


def _expire(*transformers: Transformer | None) -> None:
    """Let the compiled searches, where there are any, read the changed weights."""
    for transformer in transformers:
        if transformer is not None:
            transformer.expire()


@dataclass(frozen=True)
class TaskActor:
    """Acts in one task of the shared model."""

    algorithm: ScaleZero
    task: int

    plans = True

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.algorithm.device

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
            return actions_by_policy(self.algorithm.network.predict(self.task, observation).policy, mask, generator)
        (found,) = self.algorithm.search_tasks(
            (self.task,),
            [(observation, None if mask is None else mask.cpu().numpy())],
            num_simulations=num_simulations,
            exploration=0.0,
            generator=np.random.default_rng(0),  # nothing is drawn
        )
        return actions_by_search(found, self.device, generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions counted from the space's start."""
        return self.algorithm.actions[self.task].to_env(action)
