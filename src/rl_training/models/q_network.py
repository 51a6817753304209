"""Values of discrete actions, as numbers or as distributions, and of states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.encoders import Encoder, has_weights
from rl_training.models.layer_norm import DropoutMLP
from rl_training.models.layers import MLP, StackedMLP
from rl_training.models.noisy import NoisyLinear, NoisyMLP

DEFAULT_HIDDEN_SIZES = (64, 64)


class QNetwork(nn.Module):
    """An encoder and one stream, or with `dueling` two: Q = V + A - mean A (Wang et al. 2016, arXiv 1511.06581)."""

    def __init__(
        self,
        encoder: Encoder,
        num_actions: int,
        *,
        outputs: int,
        hidden_sizes: tuple[int, ...] | None,
        activation: str,
        dueling: bool,
        noisy: bool,
        generator: torch.Generator,
        layer_norm: bool = False,
        inputs: int | None = None,
    ) -> None:
        """`outputs` per action: 1 for a value, the number of atoms or quantiles for a distribution.

        `layer_norm` normalises the hidden layers, which then have no noise. `inputs` is the number of features that the
        streams get, by default as many as the encoder returns.
        """
        super().__init__()
        self.num_actions = num_actions
        self.outputs = outputs
        self.encoder = encoder
        if hidden_sizes is None:
            hidden_sizes = () if has_weights(self.encoder) else DEFAULT_HIDDEN_SIZES
        widths = (inputs or self.encoder.width, *hidden_sizes)
        stream = _normalized if layer_norm else NoisyMLP if noisy else MLP
        self.advantage = stream((*widths, num_actions * outputs), activation, generator=generator)
        self.value = stream((*widths, outputs), activation, generator=generator) if dueling else None

    def forward(self, observation: Observation, noisy: bool = False) -> Tensor:
        """Return [B, actions, outputs]."""
        return self.outputs_of(self.encoder.forward(observation), noisy)  # type: ignore[arg-type]

    def outputs_of(self, features: Tensor, noisy: bool = False) -> Tensor:
        """Return the outputs [B, actions, outputs] of features [B, inputs]."""
        advantage = _through(self.advantage, features, noisy).view(-1, self.num_actions, self.outputs)
        if self.value is None:
            return advantage
        value = _through(self.value, features, noisy).unsqueeze(1)
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def resample(self, generator: torch.Generator) -> None:
        """Draw new noise for every noisy layer."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.resample(generator)


def _normalized(sizes: tuple[int, ...], activation: str, *, generator: torch.Generator) -> DropoutMLP:
    """Return one perceptron with normalised hidden layers; `sizes` are the widths from the input to the output."""
    inputs, *hidden, outputs = sizes
    return DropoutMLP(1, inputs, tuple(hidden), activation, orthogonal=False, generator=generator, outputs=outputs)


def _through(stream: MLP | NoisyMLP | DropoutMLP, features: Tensor, noisy: bool) -> Tensor:
    if isinstance(stream, DropoutMLP):
        return stream.one(0, features)
    return stream.forward(features, noisy) if isinstance(stream, NoisyMLP) else stream.forward(features)


class ValueNetwork(nn.Module):
    """One value per observation."""

    def __init__(
        self, encoder: Encoder, *, hidden_sizes: tuple[int, ...], activation: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = StackedMLP(
            1, self.encoder.width, hidden_sizes, activation, orthogonal=False, generator=generator, outputs=1
        )

    def forward(self, observation: Observation) -> Tensor:
        """Return values [B]."""
        return self.network.one(0, self.encoder(observation)).squeeze(1)


class StackedQNetwork(nn.Module):
    """Several critics of state and discrete action, evaluated together."""

    def __init__(
        self,
        encoder: Encoder,
        num_actions: int,
        *,
        count: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.networks = StackedMLP(
            count,
            self.encoder.width,
            hidden_sizes,
            activation,
            orthogonal=False,
            generator=generator,
            outputs=num_actions,
        )

    def forward(self, observation: Observation, action: Tensor) -> Tensor:
        """Return the values [count, B, 1] of actions [B]."""
        every = self.networks(self.encoder(observation))  # [count, B, actions]
        chosen: Tensor = every.gather(2, action.view(1, -1, 1).expand(every.shape[0], -1, 1))
        return chosen
