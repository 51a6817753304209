"""Actors and critics for bounded continuous actions, which are [-1, 1] inside. B is the batch size."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from rl_training.data.observations import Observation
from rl_training.errors import ConfigError
from rl_training.models.batch_renorm import RenormalizedMLP
from rl_training.models.distributions import LOG_SQRT_2PI
from rl_training.models.encoders import Encoder, has_weights, make_encoder
from rl_training.models.exploration import marginal_log_std, matrix_noise
from rl_training.models.heads import LOG_STD_RANGE
from rl_training.models.layers import StackedMLP, gradient_of, linear

SDE_MEAN_LIMIT = 2.0  # beyond it tanh is flat, and the noise could not bring the mean back


LARGEST_WHOLE = 2.0**24  # float32 has no integer of its own for each number above


class ActionScale:
    """Between actions in [-1, 1] and the environment's bounds, which both belong to the actions."""

    def __init__(self, space: Space[Any]) -> None:
        assert isinstance(space, spaces.Box)
        if not space.is_bounded():
            raise ConfigError(
                "env_id: the actions of this environment have no bounds, which this algorithm needs; "
                "give it a bounded Box by gymnasium.wrappers.TransformAction, or use ppo"
            )
        self.shape = space.shape
        self.size = int(np.prod(space.shape))
        self.dtype = space.dtype
        self.low, self.high = space.low, space.high
        self.whole = space.dtype is not None and space.dtype.kind in "iub"
        if self.whole:
            self.low, self.high = space.low.astype(np.float64), space.high.astype(np.float64)
            if max(abs(self.low).max(initial=0.0), abs(self.high).max(initial=0.0)) > LARGEST_WHOLE:
                raise ConfigError(
                    f"env_id: the integer actions of this environment reach beyond {LARGEST_WHOLE:.0f}, which no "
                    "network can tell apart; give its Box narrower bounds, or float32"
                )

    def random(self, count: int, generator: torch.Generator) -> Tensor:
        """Return uniformly random actions [count, size] within [-1, 1]."""
        return torch.rand((count, self.size), generator=generator, device=generator.device) * 2 - 1

    def to_env(self, action: Tensor) -> np.ndarray:
        """Return actions [B, *shape] of the environment for [B, size] in [-1, 1]."""
        shaped = action.cpu().numpy().reshape(-1, *self.shape)
        if self.whole:
            # Each integer has an equal part of [-1, 1]: rounded, the bounds would be half as likely as the others.
            parts = np.floor(0.5 * (shaped + 1.0) * (self.high - self.low + 1.0))
            return np.clip(self.low + parts, self.low, self.high).astype(self.dtype)
        stretched = self.low + 0.5 * (shaped + 1.0) * (self.high - self.low)
        return np.clip(stretched, self.low, self.high).astype(self.dtype, copy=False)


class SampleTrace(NamedTuple):
    """Sampled actions and what their gradient needs; B is the batch size."""

    hidden: list[Tensor]  # the hidden layers' trace
    log_std: Tensor  # [B, size] before it is clamped
    spread: Tensor  # [B, size] noise times standard deviation
    action: Tensor  # [B, size]
    log_prob: Tensor  # [B]

    def split(self, size: int) -> list[SampleTrace]:
        """Return the traces of every `size` samples."""
        rows = [slice(start, start + size) for start in range(0, len(self.action), size)]
        return [
            SampleTrace([layer[:, part] for layer in self.hidden], *(tensor[part] for tensor in self[1:]))
            for part in rows
        ]


class SquashedActor(nn.Module):
    """A normal distribution squashed by tanh; with `use_sde` its noise is a function of the latent."""

    def __init__(
        self,
        observation_space: Space[Any],
        size: int,
        *,
        hidden_sizes: tuple[int, ...],
        activation: str,
        use_sde: bool,
        log_std_init: float,
        generator: torch.Generator,
        renorm_warmup: int | None = None,
    ) -> None:
        """With `renorm_warmup`, training passes to warm up, the layers are batch-renormalised."""
        super().__init__()
        self.size = size
        self.encoder = make_encoder(observation_space, orthogonal=False, generator=generator)
        self.hidden = _networks(1, self.encoder.width, hidden_sizes, activation, renorm_warmup, generator=generator)
        width = self.hidden.outputs
        self.mean = linear(width, size, orthogonal=False, generator=generator)
        self.log_std_head = None if use_sde else linear(width, size, orthogonal=False, generator=generator)
        self.log_std = nn.Parameter(torch.full((width, size), log_std_init)) if use_sde else None

    def latent(self, observation: Observation) -> Tensor:
        """Return the last hidden layer [B, width]."""
        return self.hidden.one(0, self.encoder(observation))

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation [B, size] before squashing."""
        latent = self.latent(observation)
        if self.log_std is not None:
            return self._mean(latent), marginal_log_std(latent, self.log_std)
        assert self.log_std_head is not None
        return self.mean(latent), self.log_std_head(latent).clamp(*LOG_STD_RANGE)

    def _mean(self, latent: Tensor) -> Tensor:
        return functional.hardtanh(self.mean(latent), -SDE_MEAN_LIMIT, SDE_MEAN_LIMIT)

    def sample(self, observation: Observation, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [B, size] made from standard normal noise, and their log-probabilities [B]."""
        mean, log_std = self(observation)
        raw = mean + log_std.exp() * noise
        return torch.tanh(raw), squashed_log_prob(raw, noise, log_std)

    @property
    def plain(self) -> bool:
        """Whether `backward` knows the gradient of all weights."""
        return self.log_std_head is not None and _is_plain(self.encoder, self.hidden)

    def trace(self, observation: Observation, noise: Tensor) -> SampleTrace:
        """Do what `sample` does, without autograd, for `backward`."""
        assert self.log_std_head is not None
        hidden = self.hidden.trace(self.encoder(observation))
        latent = hidden[-1][0]
        free = self.log_std_head(latent)
        log_std = free.clamp(*LOG_STD_RANGE)
        spread = log_std.exp() * noise
        raw = self.mean(latent) + spread
        return SampleTrace(hidden, free, spread, torch.tanh(raw), squashed_log_prob(raw, noise, log_std))

    def backward(self, trace: SampleTrace, by_action: Tensor, by_log_prob: Tensor) -> None:
        """Overwrite the gradients, given a loss's by the actions [B, size] and by each log-probability [1]."""
        assert self.log_std_head is not None
        # Of log(1 - tanh(x)^2) the slope is -2 tanh(x).
        by_raw = by_action * (1.0 - trace.action.square()) + 2.0 * by_log_prob * trace.action
        free = (trace.log_std >= LOG_STD_RANGE[0]) & (trace.log_std <= LOG_STD_RANGE[1])
        by_log_std = (by_raw * trace.spread - by_log_prob) * free
        latent = trace.hidden[-1][0]
        for head, gradient in ((self.mean, by_raw), (self.log_std_head, by_log_std)):
            torch.mm(gradient.t(), latent, out=gradient_of(head.weight))
            torch.sum(gradient, 0, out=gradient_of(head.bias))
        by_latent = torch.addmm(by_raw @ self.mean.weight, by_log_std, self.log_std_head.weight)
        self.hidden.backward(trace.hidden, by_latent.unsqueeze(0))

    def mode(self, observation: Observation) -> Tensor:
        """Return the squashed means [B, size]."""
        latent = self.latent(observation)
        return torch.tanh(self.mean(latent) if self.log_std is None else self._mean(latent))

    def explore(self, latent: Tensor, matrices: Tensor) -> Tensor:
        """Return actions [num_envs, size] with the noise of the given gSDE matrices."""
        return torch.tanh(self._mean(latent) + matrix_noise(latent, matrices))


def squashed_log_prob(raw: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-densities [B] of tanh(raw), raw = mean + exp(log_std) * noise, each [B, size].

    log(1 - tanh(x)^2) is written as 2 (log 2 - x - softplus(-2x)), which stays exact where tanh saturates.
    """
    normal = -(0.5 * noise.square() + log_std + LOG_SQRT_2PI)
    squash = 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))
    return (normal - squash).sum(dim=-1)


def _networks(
    count: int,
    inputs: int,
    hidden_sizes: tuple[int, ...],
    activation: str,
    renorm_warmup: int | None = None,
    *,
    generator: torch.Generator,
    outputs: int | None = None,
) -> StackedMLP:
    shape = (count, inputs, hidden_sizes, activation)
    if renorm_warmup is None:
        return StackedMLP(*shape, orthogonal=False, generator=generator, outputs=outputs)
    return RenormalizedMLP(*shape, warmup=renorm_warmup, orthogonal=False, generator=generator, outputs=outputs)


def _is_plain(encoder: Encoder, networks: StackedMLP) -> bool:
    """Whether nothing but perceptrons whose gradient is known by hand has weights."""
    return not has_weights(encoder) and not isinstance(networks, RenormalizedMLP) and networks.slope is not None


class DeterministicActor(nn.Module):
    """One action per observation, squashed by tanh."""

    def __init__(
        self,
        observation_space: Space[Any],
        size: int,
        *,
        hidden_sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(observation_space, orthogonal=False, generator=generator)
        self.network = _networks(1, self.encoder.width, hidden_sizes, activation, generator=generator, outputs=size)

    def forward(self, observation: Observation) -> Tensor:
        """Return actions [B, size]."""
        return torch.tanh(self.network.one(0, self.encoder(observation)))

    @property
    def plain(self) -> bool:
        """Whether `backward` knows the gradient of all weights."""
        return _is_plain(self.encoder, self.network)

    def trace(self, observation: Observation) -> tuple[list[Tensor], Tensor]:
        """Return the layers' trace and the actions [B, size], without autograd."""
        hidden = self.network.trace(self.encoder(observation))
        return hidden, torch.tanh(hidden[-1][0])

    def backward(self, hidden: list[Tensor], action: Tensor, by_action: Tensor) -> None:
        """Overwrite the gradients, given a loss's by the traced actions [B, size]."""
        self.network.backward(hidden, (by_action * (1.0 - action.square())).unsqueeze(0))


class StackedCritic(nn.Module):
    """Several critics of state and action, evaluated as one."""

    def __init__(
        self,
        observation_space: Space[Any],
        size: int,
        *,
        count: int,
        outputs: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
        renorm_warmup: int | None = None,
    ) -> None:
        """With `renorm_warmup`, training passes to warm up, the layers are batch-renormalised."""
        super().__init__()
        self.outputs = outputs
        self.encoder = make_encoder(observation_space, orthogonal=False, generator=generator)
        inputs = self.encoder.width + size
        self.networks = _networks(
            count, inputs, hidden_sizes, activation, renorm_warmup, generator=generator, outputs=outputs
        )

    def forward(self, observation: Observation, action: Tensor) -> Tensor:
        """Return values [count, B, outputs]."""
        values: Tensor = self.networks(self._features(observation, action))
        return values

    def first(self, observation: Observation, action: Tensor) -> Tensor:
        """Return the values [B, outputs] of the first critic alone."""
        return self.networks.one(0, self._features(observation, action))

    @property
    def plain(self) -> bool:
        """Whether `backward` knows the gradient of all weights."""
        return _is_plain(self.encoder, self.networks)

    def trace(self, observation: Observation, action: Tensor, count: int | None = None) -> list[Tensor]:
        """Return what the networks, or the first `count`, make of the pairs, the values last, without autograd."""
        return self.networks.trace(self._features(observation, action), count)

    def backward(self, trace: list[Tensor], gradient: Tensor) -> None:
        """Overwrite the gradients, given a loss's gradient [count, B, outputs] by the traced values."""
        self.networks.backward(trace, gradient)

    def action_gradient(self, trace: list[Tensor], gradient: Tensor) -> Tensor:
        """Return a loss's gradient [B, size] by the actions, given that by the traced values."""
        return self.networks.input_gradient(trace, gradient, self.encoder.width)

    def _features(self, observation: Observation, action: Tensor) -> Tensor:
        return torch.cat((self.encoder(observation), action), dim=1)
