"""Actors and critics for bounded continuous actions, which are scaled to [-1, 1]. B is the batch size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from rl_training.data.observations import Observation
from rl_training.errors import ConfigError
from rl_training.models.batch_renorm import RenormalizedMLP
from rl_training.models.distributions import LOG_SQRT_2PI
from rl_training.models.encoders import Encoder
from rl_training.models.exploration import marginal_log_std, matrix_noise
from rl_training.models.heads import LOG_STD_RANGE
from rl_training.models.layer_norm import DropoutMLP, LayerNormMLP
from rl_training.models.layers import StackedMLP, linear

SDE_MEAN_LIMIT = 2.0  # tanh saturates beyond it, and the noise could not bring the mean back


LARGEST_ACTION = 1.0 - 1e-6  # beyond it tanh cannot be inverted in single precision
LARGEST_WHOLE = 2.0**24  # float32 cannot represent every integer above


class ActionScale:
    """Converts actions between [-1, 1] and the environment's bounds, both inclusive."""

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
                    f"env_id: the integer actions of this environment reach beyond {LARGEST_WHOLE:.0f}, which a "
                    "network cannot distinguish; give its Box narrower bounds, or float32"
                )

    def random(self, count: int, generator: torch.Generator) -> Tensor:
        """Return uniformly random actions [count, size] within [-1, 1]."""
        return torch.rand((count, self.size), generator=generator, device=generator.device) * 2 - 1

    def to_env(self, action: Tensor) -> np.ndarray:
        """Return environment actions [B, *shape] for actions [B, size] in [-1, 1]."""
        shaped = action.cpu().numpy().reshape(-1, *self.shape)
        if self.whole:
            # Each integer gets an equal part of [-1, 1]: rounding would make the bounds half as likely as the others.
            parts = np.floor(0.5 * (shaped + 1.0) * (self.high - self.low + 1.0))
            return np.clip(self.low + parts, self.low, self.high).astype(self.dtype)
        stretched = self.low + 0.5 * (shaped + 1.0) * (self.high - self.low)
        return np.clip(stretched, self.low, self.high).astype(self.dtype, copy=False)

    def from_env(self, action: np.ndarray) -> np.ndarray:
        """Return actions [..., size] in [-1, 1] as float32 for environment actions [..., *shape]."""
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        if self.whole:  # the middle of the part of [-1, 1] that the integer gets
            low, high = low - 0.5, high + 0.5
        scaled = 2.0 * (action - low) / np.maximum(high - low, np.finfo(np.float32).tiny) - 1.0
        flat = scaled.reshape(*action.shape[: action.ndim - len(self.shape)], self.size)
        return np.clip(flat, -1.0, 1.0).astype(np.float32)

    def log_stretch(self, device: torch.device) -> Tensor:
        """Return the logs [size] of the factors by which `to_env` stretches: what log-densities in [-1, 1] exceed."""
        factors = 0.5 * (self.high.astype(np.float64) - self.low).reshape(-1)
        return torch.as_tensor(np.log(factors), dtype=torch.float32, device=device)


class SquashedActor(nn.Module):
    """A normal distribution squashed by tanh; with `use_sde` its noise is a function of the latent."""

    def __init__(
        self,
        encoder: Encoder,
        size: int,
        *,
        hidden_sizes: tuple[int, ...],
        activation: str,
        use_sde: bool,
        log_std_init: float,
        generator: torch.Generator,
        renorm_warmup: int | None = None,
    ) -> None:
        """`renorm_warmup` adds batch renormalisation with so many training passes of warmup."""
        super().__init__()
        self.size = size
        self.encoder = encoder
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
        """Return actions [B, size] computed from standard normal noise, and their log-probabilities [B]."""
        mean, log_std = self(observation)
        raw = mean + log_std.exp() * noise
        return torch.tanh(raw), squashed_log_prob(raw, noise, log_std)

    def log_prob(self, observation: Observation, action: Tensor) -> Tensor:
        """Return the log-densities [B] of actions [B, size]; those at the bounds are taken a little inside."""
        mean, log_std = self(observation)
        raw = torch.atanh(action.clamp(-LARGEST_ACTION, LARGEST_ACTION))
        return squashed_log_prob(raw, (raw - mean) * torch.exp(-log_std), log_std)

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
    layer_norm: bool = False,
    dropout: float = 0.0,
) -> StackedMLP:
    shape = (count, inputs, hidden_sizes, activation)
    if dropout:
        options: dict[str, Any] = {"dropout": dropout, "layer_norm": layer_norm, "outputs": outputs}
        return DropoutMLP(*shape, orthogonal=False, generator=generator, **options)
    if layer_norm:
        return LayerNormMLP(*shape, orthogonal=False, generator=generator, outputs=outputs)
    if renorm_warmup is None:
        return StackedMLP(*shape, orthogonal=False, generator=generator, outputs=outputs)
    return RenormalizedMLP(*shape, warmup=renorm_warmup, orthogonal=False, generator=generator, outputs=outputs)


class DeterministicActor(nn.Module):
    """One action per observation, squashed by tanh."""

    def __init__(
        self,
        encoder: Encoder,
        size: int,
        *,
        hidden_sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = _networks(1, self.encoder.width, hidden_sizes, activation, generator=generator, outputs=size)

    def forward(self, observation: Observation) -> Tensor:
        """Return actions [B, size]."""
        return torch.tanh(self.network.one(0, self.encoder(observation)))


class StackedCritic(nn.Module):
    """Several critics of state and action, evaluated together."""

    def __init__(
        self,
        encoder: Encoder,
        size: int,
        *,
        count: int,
        outputs: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
        renorm_warmup: int | None = None,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """`renorm_warmup` adds batch renormalisation with so many training passes of warmup, `layer_norm` LayerNorm.

        `dropout` is the probability of dropping a unit in passes that are given a generator.
        """
        super().__init__()
        self.outputs = outputs
        self.encoder = encoder
        inputs = self.encoder.width + size
        self.networks = _networks(
            count,
            inputs,
            hidden_sizes,
            activation,
            renorm_warmup,
            generator=generator,
            outputs=outputs,
            layer_norm=layer_norm,
            dropout=dropout,
        )

    def forward(
        self,
        observation: Observation,
        action: Tensor,
        networks: Tensor | None = None,
        dropout: torch.Generator | None = None,
    ) -> Tensor:
        """Return values [count, B, outputs], or those of the critics in `networks`; `dropout` draws dropped units."""
        drawn = () if dropout is None else (dropout,)
        values: Tensor = self.networks(self._features(observation, action), networks, *drawn)
        return values

    def first(self, observation: Observation, action: Tensor) -> Tensor:
        """Return the values [B, outputs] of the first critic alone."""
        return self.networks.one(0, self._features(observation, action))

    def many(self, observation: Observation, actions: Tensor) -> Tensor:
        """Return values [count, N, B, outputs] of several actions [N, B, size] per observation.

        Observations are encoded once.
        """
        number, rows, _ = actions.shape
        features = self.encoder(observation)
        joined = torch.cat((features.expand(number, *features.shape), actions), dim=2)
        values: Tensor = self.networks(joined.flatten(0, 1))
        return values.unflatten(1, (number, rows))

    def _features(self, observation: Observation, action: Tensor) -> Tensor:
        return torch.cat((self.encoder(observation), action), dim=1)
