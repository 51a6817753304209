"""One world model for many tasks: each task has its own encoder, actions and heads, and all share a transformer.

B is the batch size, K the number of steps, A the number of a task's actions, S the size of the scalars' support. A
task's encoder maps an observation to a latent; the heads on a latent's token predict policy and value, those on an
action's token the next latent and the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from gymnasium import Space
from torch import Tensor, nn
from torch.nn import functional

from rl_training.data.observations import Observation
from rl_training.models.encoders import make_encoder
from rl_training.models.layers import linear
from rl_training.models.planning.adapters import freeze_for_stage
from rl_training.models.planning.experts import Routing
from rl_training.models.planning.planning_network import Block, Prediction
from rl_training.models.planning.scalar_support import expected_scalar
from rl_training.models.planning.world_transformer import WorldTransformer

SIMPLEX_SIZE = 8


class TaskSpec(NamedTuple):
    """What the network needs to know about a task."""

    name: str
    observation_space: Space[Any]
    actions: int


class Step(NamedTuple):
    """Predictions for actions."""

    latent: Tensor  # [..., width] of the next state
    reward: Tensor  # [..., 2S + 1] logits


class TaskWindow(NamedTuple):
    """Sequences of one task."""

    task: int
    latent: Tensor  # [K + 1, B, width] of the states
    action: Tensor  # [K, B] taken between them


class Unrolled(NamedTuple):
    """Predictions along sequences of one task, each made from the true sequence up to its token."""

    step: Step  # [K, B, ...]
    prediction: Prediction  # [K + 1, B, ...]
    routings: list[Routing]  # per layer, of tokens [2K + 1, B]: states at even positions, actions at odd ones


def simplex_norm(features: Tensor) -> Tensor:
    """Turn every group of eight numbers into a distribution (Hansen et al. 2024, arXiv 2310.16828): bounded latents."""
    return features.unflatten(-1, (-1, SIMPLEX_SIZE)).softmax(-1).flatten(-2)


class TaskParts(nn.Module):
    """The encoder, actions and heads of one task."""

    def __init__(
        self, spec: TaskSpec, *, width: int, hidden_size: int, support_size: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"orthogonal": False, "generator": generator}
        self.encoder = make_encoder(spec.observation_space, orthogonal=True, generator=generator)
        self.representation = Block(self.encoder.width, hidden_size, width, generator=generator)
        self.action_rows = nn.Parameter(torch.empty(spec.actions, width))
        nn.init.uniform_(self.action_rows, -(width**-0.5), width**-0.5, generator=generator)
        self.state_trunk = linear(width, hidden_size, **options)
        self.policy = linear(hidden_size, spec.actions, **options)
        self.value = linear(hidden_size, 2 * support_size + 1, **options)
        self.step_trunk = linear(width, hidden_size, **options)
        self.latent = linear(hidden_size, width, **options)
        self.reward = linear(hidden_size, 2 * support_size + 1, **options)
        for head in (self.policy, self.value, self.reward):  # initial predictions are neutral instead of noise
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def encode(self, observation: Observation) -> Tensor:
        """Return the latents [B, width] of observations."""
        return simplex_norm(self.representation(self.encoder(observation)))

    def embed(self, action: Tensor) -> Tensor:
        """Return the tokens [..., width] of actions [...]."""
        return functional.embedding(action, self.action_rows)

    def predict(self, output: Tensor) -> Prediction:
        """Return policy and value, given the transformer's outputs [..., width] at latents."""
        features = torch.relu(self.state_trunk(output))
        return Prediction(self.policy(features), self.value(features))

    def imagine(self, output: Tensor) -> Step:
        """Return next latent and reward, given the transformer's outputs [..., width] at actions."""
        features = torch.relu(self.step_trunk(output))
        return Step(simplex_norm(self.latent(features)), self.reward(features))


class ScaleZeroNetwork(nn.Module):
    """The parts of every task around the transformer that they share; tasks are identified by their index."""

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        *,
        width: int,
        layers: int,
        heads: int,
        context_steps: int,
        expert_size: int,
        experts: int,
        top_k: int,
        adapters: int,
        adapter_rank: int,
        hidden_size: int,
        support_size: int,
        generator: torch.Generator,
    ) -> None:
        """`hidden_size` is that of encoders and heads; `experts` of 1 makes dense layers of equal active size."""
        super().__init__()
        self.specs = tuple(tasks)
        self.width = width
        self.support_size = support_size
        self.transformer = WorldTransformer(
            width,
            layers=layers,
            heads=heads,
            context_steps=context_steps,
            expert_size=expert_size,
            experts=experts,
            top_k=top_k,
            adapters=adapters,
            adapter_rank=adapter_rank,
            generator=generator,
        )
        freeze_for_stage(self.transformer, 0)
        self.tasks = nn.ModuleList(
            TaskParts(spec, width=width, hidden_size=hidden_size, support_size=support_size, generator=generator)
            for spec in tasks
        )

    def parts(self, task: int) -> TaskParts:
        """Return the parts of one task."""
        parts = self.tasks[task]
        assert isinstance(parts, TaskParts)
        return parts

    def encode(self, task: int, observation: Observation) -> Tensor:
        """Return the latents [B, width] of a task's observations."""
        return self.parts(task).encode(observation)

    def unroll(self, windows: Sequence[TaskWindow]) -> list[Unrolled]:
        """Predict along sequences of equal length, those of all tasks in one pass of the transformer."""
        tokens = torch.cat([self._tokens(window) for window in windows], 1)
        outputs, routings = self.transformer(tokens.transpose(0, 1))
        rows = [window.action.shape[1] for window in windows]
        by_task = outputs.transpose(0, 1).split(rows, dim=1)
        found = []
        for number, (window, output) in enumerate(zip(windows, by_task, strict=True)):
            parts, first = self.parts(window.task), sum(rows[:number])
            own = slice(first, first + rows[number])
            routing = [Routing(*(part[own].transpose(0, 1) for part in layer)) for layer in routings]
            found.append(Unrolled(parts.imagine(output[1::2]), parts.predict(output[::2]), routing))
        return found

    def _tokens(self, window: TaskWindow) -> Tensor:
        """Return latents and actions interleaved, [2K + 1, B, width]."""
        actions = self.parts(window.task).embed(window.action)
        return torch.cat((torch.stack((window.latent[:-1], actions), 1).flatten(0, 1), window.latent[-1:]))

    def predict(self, task: int, observation: Observation) -> Prediction:
        """Return policy and value for observations [B], without earlier context."""
        latent = self.encode(task, observation)
        outputs, _ = self.transformer(latent.unsqueeze(1))
        return self.parts(task).predict(outputs.squeeze(1))

    def values(self, task: int, observation: Observation) -> Tensor:
        """Return the values [B] of observations, without earlier context."""
        return expected_scalar(self.predict(task, observation).value)
