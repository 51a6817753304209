"""Passes of actors and critics for continuous actions, written out. B is the batch size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.data.observations import Observation
from rl_training.kernels import requires
from rl_training.kernels.perceptrons import Perceptrons, differentiable, gradient_of
from rl_training.models.continuous import DeterministicActor, SquashedActor, StackedCritic, squashed_log_prob
from rl_training.models.heads import LOG_STD_RANGE
from rl_training.models.layers import StackedMLP
from rl_training.models.optimizers import FlatOptimizer

_FEWEST_ROWS = 64


class Sample(NamedTuple):
    """Sampled actions and what their gradient needs."""

    activations: list[Tensor]  # of the hidden layers
    log_std: Tensor  # [B, size] before it is clamped
    spread: Tensor  # [B, size] noise times standard deviation
    action: Tensor  # [B, size]
    log_prob: Tensor  # [B]

    def split(self, size: int) -> list[Sample]:
        """Return every `size` samples on their own."""
        rows = [slice(start, start + size) for start in range(0, len(self.action), size)]
        return [
            Sample([layer[:, part] for layer in self.activations], *(tensor[part] for tensor in self[1:]))
            for part in rows
        ]


class SquashedActorPasses:
    """Samples of a `SquashedActor` and their gradient."""

    def __init__(self, actor: Any) -> None:
        self.actor = requires.exact(actor, SquashedActor)
        requires.plain_encoder(self.actor.encoder, "the actor's")
        requires.that(differentiable(self.actor.hidden), "the actor's layers have no written-out gradient")
        requires.that(self.actor.log_std_head is not None, "state-dependent exploration has no written-out gradient")
        self.hidden = Perceptrons(self.actor.hidden)

    def sample(self, observation: Observation, noise: Tensor) -> Sample:
        """Sample actions from standard normal noise [B, size]."""
        actor = self.actor
        assert actor.log_std_head is not None
        activations = self.hidden.forward(actor.encoder(observation))
        latent = activations[-1][0]
        free = actor.log_std_head(latent)
        log_std = free.clamp(*LOG_STD_RANGE)
        spread = log_std.exp() * noise
        raw = actor.mean(latent) + spread
        return Sample(activations, free, spread, torch.tanh(raw), squashed_log_prob(raw, noise, log_std))

    def backward(self, sample: Sample, grad_action: Tensor, grad_log_prob: Tensor) -> None:
        """Overwrite the gradients, given those with respect to the actions [B, size] and each log-probability [1]."""
        actor = self.actor
        assert actor.log_std_head is not None
        # The derivative of log(1 - tanh(x)^2) is -2 tanh(x).
        grad_raw = grad_action * (1.0 - sample.action.square()) + 2.0 * grad_log_prob * sample.action
        free = (sample.log_std >= LOG_STD_RANGE[0]) & (sample.log_std <= LOG_STD_RANGE[1])
        grad_log_std = (grad_raw * sample.spread - grad_log_prob) * free
        latent = sample.activations[-1][0]
        for head, gradient in ((actor.mean, grad_raw), (actor.log_std_head, grad_log_std)):
            torch.mm(gradient.t(), latent, out=gradient_of(head.weight))
            torch.sum(gradient, 0, out=gradient_of(head.bias))
        grad_latent = torch.addmm(grad_raw @ actor.mean.weight, grad_log_std, actor.log_std_head.weight)
        self.hidden.backward(sample.activations, grad_latent.unsqueeze(0))


class DeterministicActorPasses:
    """Actions of a `DeterministicActor` and their gradient."""

    def __init__(self, actor: Any) -> None:
        self.actor = requires.exact(actor, DeterministicActor)
        requires.plain_encoder(self.actor.encoder, "the actor's")
        requires.that(differentiable(self.actor.network), "the actor's layers have no written-out gradient")
        self.network = Perceptrons(self.actor.network)

    def forward(self, observation: Observation) -> tuple[list[Tensor], Tensor]:
        """Return the layers' outputs and the actions [B, size]."""
        activations = self.network.forward(self.actor.encoder(observation))
        return activations, torch.tanh(activations[-1][0])

    def backward(self, activations: list[Tensor], action: Tensor, grad_action: Tensor) -> None:
        """Overwrite the gradients, given that with respect to the actions [B, size]."""
        self.network.backward(activations, (grad_action * (1.0 - action.square())).unsqueeze(0))


class CriticPasses:
    """Values of a `StackedCritic` and their gradient."""

    def __init__(self, critic: Any) -> None:
        self.critic = requires.exact(critic, StackedCritic)
        requires.plain_encoder(self.critic.encoder, "the critics'")
        requires.that(differentiable(self.critic.networks), "the critics' layers have no written-out gradient")
        self.networks = Perceptrons(self.critic.networks)

    def forward(self, observation: Observation, action: Tensor, count: int | None = None) -> list[Tensor]:
        """Return the layers' outputs, values [critics, B, outputs] last, of all critics or of the first `count`."""
        features = torch.cat((self.critic.encoder(observation), action), dim=1)
        return self.networks.forward(features, count)

    def backward(self, activations: list[Tensor], grad_values: Tensor) -> None:
        """Overwrite the gradients, given that with respect to the values [critics, B, outputs]."""
        self.networks.backward(activations, grad_values)

    def action_gradient(self, activations: list[Tensor], grad_values: Tensor) -> Tensor:
        """Return the gradient [B, size] with respect to the actions."""
        return self.networks.input_gradient(activations, grad_values, self.critic.encoder.width)


def require_compilable(algorithm: Any, known: type, actor: StackedMLP, updates: float | None) -> None:
    """Require that compiled code covers all gradient steps of an update, of which the passes are known already."""
    requires.own_formula(algorithm, known, "improve", "actor_due")
    requires.that(algorithm.device.type == "cpu", "the update is compiled for the CPU only")
    for optimizer in (algorithm.actor_optimizer, algorithm.critic_optimizer):
        requires.exact(optimizer, FlatOptimizer)
    for network in (actor, algorithm.critic.networks):
        requires.that(network.activated > 0, "networks without hidden layers have no compiled update")
    requires.enough_updates(updates)


def parts_of(batch_size: int) -> int:
    """Return in how many parts a batch is passed at the same time: few rows are not worth a thread."""
    return min(torch.get_num_threads(), max(batch_size // _FEWEST_ROWS, 1))
