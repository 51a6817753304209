"""Action heads: map a policy's last hidden layer to a distribution, and its actions to those of the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    clipped_gaussian_log_prob,
    mask_logits,
)
from rl_training.models.exploration import marginal_log_std, matrix_noise
from rl_training.models.layers import linear

POLICY_GAIN = 0.01  # a near-uniform initial policy explores best (Andrychowicz et al. 2021, arXiv 2006.05990)
LOG_STD_RANGE = (-20.0, 2.0)


class ActionHead(nn.Module):
    """Base class of the heads: a linear layer on the policy's latent."""

    def __init__(
        self, space: Space[Any], latent: int, outputs: int, *, orthogonal: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.space = space
        self.linear = linear(latent, outputs, orthogonal=orthogonal, gain=POLICY_GAIN, generator=generator)

    def forward(self, latent: Tensor, mask: Tensor | None) -> Distribution:
        """Return the distribution over actions for latents [B, latent]."""
        return self.distribution(self.linear(latent), mask)

    def distribution(self, output: Tensor, mask: Tensor | None) -> Any:
        """Return the distribution for outputs of the layer."""
        raise TypeError(f"{type(self).__name__} needs the latent, not only its layer's output, for a distribution")

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions [B, ...] in the format of the environment's action space."""
        return action.cpu().numpy()

    def env_log_prob(self, distribution: Any, action: np.ndarray) -> Tensor | None:
        """Return the log-probabilities [B] of actions [B, ...] in the environment's format, None if unknown."""
        start = getattr(self.space, "start", 0)
        chosen = torch.as_tensor(action - start, dtype=torch.int64, device=self.linear.weight.device)
        log_prob: Tensor = distribution.log_prob(chosen if chosen.ndim == 1 else chosen.flatten(1))
        return log_prob


class CategoricalHead(ActionHead):
    """Discrete actions."""

    def __init__(self, space: spaces.Discrete, latent: int, *, orthogonal: bool, generator: torch.Generator) -> None:
        super().__init__(space, latent, int(space.n), orthogonal=orthogonal, generator=generator)
        self.start = int(space.start)

    def distribution(self, output: Tensor, mask: Tensor | None) -> Categorical:
        """Return the distribution over the legal actions."""
        return Categorical(mask_logits(output, mask))

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions as the environment numbers them, from the space's `start`."""
        return action.cpu().numpy() + self.start if self.start else action.cpu().numpy()


class MultiCategoricalHead(ActionHead):
    """MultiDiscrete actions; a mask is the concatenation of the variables' masks."""

    def __init__(
        self, space: spaces.MultiDiscrete, latent: int, *, orthogonal: bool, generator: torch.Generator
    ) -> None:
        self.choices = tuple(int(n) for n in space.nvec.flatten())
        super().__init__(space, latent, sum(self.choices), orthogonal=orthogonal, generator=generator)

    def distribution(self, output: Tensor, mask: Tensor | None) -> MultiCategorical:
        """Return the independent distributions over the legal values."""
        return MultiCategorical(mask_logits(output, mask), self.choices)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the choices in the space's shape, numbered from its `start`."""
        assert isinstance(self.space, spaces.MultiDiscrete)
        shaped = action.cpu().numpy().reshape(-1, *self.space.nvec.shape)
        return (shaped + self.space.start).astype(self.space.dtype)


class BernoulliHead(ActionHead):
    """MultiBinary actions; bits that the mask marks as illegal are 0."""

    def __init__(self, space: spaces.MultiBinary, latent: int, *, orthogonal: bool, generator: torch.Generator) -> None:
        super().__init__(space, latent, int(np.prod(space.shape)), orthogonal=orthogonal, generator=generator)

    def distribution(self, output: Tensor, mask: Tensor | None) -> Bernoulli:
        """Return the independent binary variables."""
        return Bernoulli(mask_logits(output, mask))

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the bits in the space's shape."""
        return action.cpu().numpy().reshape(-1, *(self.space.shape or ()))


class BoxHead(ActionHead):
    """Base class of the continuous heads: actions are unbounded, and clipped to the space for the environment."""

    def __init__(
        self,
        space: spaces.Box,
        latent: int,
        outputs_per_action: int,
        *,
        orthogonal: bool,
        generator: torch.Generator,
    ) -> None:
        self.size = int(np.prod(space.shape))
        super().__init__(space, latent, outputs_per_action * self.size, orthogonal=orthogonal, generator=generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions clipped to the space's bounds, in its shape; integer actions are rounded."""
        assert isinstance(self.space, spaces.Box)
        shaped = action.cpu().numpy().reshape(-1, *self.space.shape)
        if self.space.dtype.kind in "iub":  # a cast would truncate, and hardly ever give the highest value
            shaped = np.rint(shaped)
        # Several times as fast as `np.clip` on small arrays.
        clipped = np.minimum(np.maximum(shaped, self.space.low), self.space.high)
        return clipped.astype(self.space.dtype, copy=False)

    def env_log_prob(self, distribution: Any, action: np.ndarray) -> Tensor | None:
        """Return the log-densities [B] of clipped actions; those of rounded integers are not computed."""
        assert isinstance(self.space, spaces.Box)
        if self.space.dtype.kind in "iub":
            return None
        mean: Tensor = distribution.mean
        taken, low, high = (
            torch.as_tensor(array.reshape(-1, self.size), dtype=mean.dtype, device=mean.device)
            for array in (action, self.space.low, self.space.high)
        )
        return clipped_gaussian_log_prob(mean, distribution.log_std, taken, low, high)


class GaussianHead(BoxHead):
    """Box actions with one learned log standard deviation per dimension."""

    def __init__(
        self,
        space: spaces.Box,
        latent: int,
        *,
        log_std_init: float,
        orthogonal: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__(space, latent, 1, orthogonal=orthogonal, generator=generator)
        self.log_std = nn.Parameter(torch.full((self.size,), log_std_init))

    def distribution(self, output: Tensor, mask: Tensor | None) -> DiagonalGaussian:
        """Return independent normal variables."""
        return DiagonalGaussian(output, self.log_std)


class StateDependentGaussianHead(BoxHead):
    """Box actions whose log standard deviation is an output of the network."""

    def __init__(
        self,
        space: spaces.Box,
        latent: int,
        *,
        log_std_init: float,
        orthogonal: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__(space, latent, 2, orthogonal=orthogonal, generator=generator)
        with torch.no_grad():
            self.linear.bias[self.size :].fill_(log_std_init)

    def distribution(self, output: Tensor, mask: Tensor | None) -> DiagonalGaussian:
        """Return independent normal variables."""
        mean, log_std = output.split(self.size, dim=-1)
        return DiagonalGaussian(mean, log_std.clamp(*LOG_STD_RANGE))


class StateDependentNoiseHead(BoxHead):
    """Box actions with generalised state-dependent exploration.

    Each action's marginal is a normal distribution whose variance is latent^2 @ std^2.
    """

    def __init__(
        self,
        space: spaces.Box,
        latent: int,
        *,
        log_std_init: float,
        orthogonal: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__(space, latent, 1, orthogonal=orthogonal, generator=generator)
        self.log_std = nn.Parameter(torch.full((latent, self.size), log_std_init))

    def forward(self, latent: Tensor, mask: Tensor | None) -> Distribution:
        """Return the marginal normal distributions."""
        return DiagonalGaussian(self.linear(latent), marginal_log_std(latent, self.log_std))

    def explore(self, latent: Tensor, matrices: Tensor) -> Tensor:
        """Return actions [num_envs, size] with the noise of the given matrices."""
        action: Tensor = self.linear(latent) + matrix_noise(latent, matrices)
        return action


def make_action_head(
    space: Space[Any],
    latent: int,
    *,
    log_std: str,
    log_std_init: float,
    use_sde: bool,
    orthogonal: bool,
    generator: torch.Generator,
) -> ActionHead:
    """Return the head for an action space."""
    if use_sde and not isinstance(space, spaces.Box):
        raise ConfigError(
            f"algo_kwargs.use_sde: state-dependent exploration needs Box actions, this environment has "
            f"{type(space).__name__}; set use_sde to false"
        )
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space, latent, orthogonal=orthogonal, generator=generator)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space, latent, orthogonal=orthogonal, generator=generator)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space, latent, orthogonal=orthogonal, generator=generator)
    if isinstance(space, spaces.Box):
        head = (
            StateDependentNoiseHead
            if use_sde
            else GaussianHead
            if log_std == "state_independent"
            else StateDependentGaussianHead
        )
        return head(space, latent, log_std_init=log_std_init, orthogonal=orthogonal, generator=generator)
    raise ConfigError(
        f"actions of type {type(space).__name__} are not supported; "
        "use Discrete, MultiDiscrete, MultiBinary or Box (wrap the environment to convert)"
    )
