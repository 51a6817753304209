"""A random perceptron for the compiled path, and the same network in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rl_training.kernels.search.perceptron_layout import Dense
from rl_training.kernels.search.perceptron_model import MLPModel
from rl_training.search.model import ModelOutput

LATENT = 20
ACTIONS = 3


class Perceptron:
    """A torch model with layers of every kind; `compiled` is the same for the compiled path."""

    def __init__(self, seed: int, *, activation: str, norm: bool, residual: bool, rescale: bool, atoms: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.activation, self.norm = activation, norm
        self.residual, self.rescale = residual, rescale
        self.rows = self.random(ACTIONS, 33)
        self.dynamics = [self.layer(LATENT, 33), self.layer(33, LATENT)]
        self.trunk = [self.layer(LATENT, 40)]
        self.reward = [self.layer(LATENT, 9), self.last(9, atoms)]
        self.value = [self.layer(40, 9), self.last(9, atoms)]
        self.policy = [self.last(40, ACTIONS)]
        self.compiled = MLPModel(
            lambda observation: observation,
            action_rows=self.rows,
            dynamics=self.dynamics,
            trunk=self.trunk,
            reward=self.reward,
            value=self.value,
            policy=self.policy,
            discount=0.95,
            residual=residual,
            rescale=rescale,
        )

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def layer(self, inputs: int, outputs: int) -> Dense:
        norm = (1 + 0.1 * self.random(outputs), 0.1 * self.random(outputs)) if self.norm else None
        return Dense(self.random(outputs, inputs) / inputs**0.5, 0.3 * self.random(outputs), self.activation, norm)

    def last(self, inputs: int, outputs: int) -> Dense:
        return Dense(2 * self.random(outputs, inputs) / inputs**0.5, self.random(outputs))

    def initial(self, observation: Any) -> ModelOutput:
        return self.heads(observation, observation.new_zeros(len(observation)))

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        latent = apply(self.dynamics, embedding, self.rows[action])
        if self.residual:
            latent = latent + embedding
        if self.rescale:
            low, high = latent.amin(1, keepdim=True), latent.amax(1, keepdim=True)
            latent = (latent - low) / (high - low).clamp(min=1e-5)
        return self.heads(latent, scalar(apply(self.reward, latent)))

    def heads(self, latent: Tensor, reward: Tensor) -> ModelOutput:
        features = apply(self.trunk, latent)
        value = scalar(apply(self.value, features))
        return ModelOutput(apply(self.policy, features), value, reward, torch.full_like(reward, 0.95), latent)


def apply(layers: Sequence[Dense], hidden: Tensor, extra: Tensor | float = 0.0) -> Tensor:
    """Return what the layers make of [B, inputs]; `extra` enters the first before normalisation and activation."""
    for layer in layers:
        hidden = functional.linear(hidden, layer.weight, layer.bias) + extra
        if layer.norm is not None:
            hidden = functional.layer_norm(hidden, hidden.shape[1:], *layer.norm)
        if layer.activation != "identity":
            hidden = getattr(functional, layer.activation)(hidden)
        extra = 0.0
    return hidden


def scalar(logits: Tensor) -> Tensor:
    """Return the numbers [B] that a head's outputs stand for."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    half = logits.shape[1] // 2
    mean = logits.double().softmax(1) @ torch.arange(-half, half + 1, dtype=torch.float64)
    root = ((1 + 0.004 * (mean.abs() + 1.001)).sqrt() - 1) / 0.002
    return (mean.sign() * (root**2 - 1)).float()
