"""The networks of the planning algorithms: representation, dynamics and prediction over a latent vector.

B is the batch size, A the number of actions, S the size of the scalars' support. Latents are rescaled to [0, 1]. An
action is a learned vector added in the first layer of the dynamics, which is equivalent to a one-hot input.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.data.observations import Observation
from rl_training.models.encoders import Encoder
from rl_training.models.layers import initialize, linear
from rl_training.models.planning.scalar_support import expected_scalar

_SMALLEST_RANGE = 1e-5


class Prediction(NamedTuple):
    """Predictions for states."""

    policy: Tensor  # [..., A] logits
    value: Tensor  # [..., 2S + 1] logits


def rescale(latent: Tensor) -> Tensor:
    """Rescale each latent to [0, 1] by its minimum and maximum."""
    low, high = latent.aminmax(dim=-1, keepdim=True)
    return (latent - low) / (high - low).clamp(min=_SMALLEST_RANGE)


class LatentNetwork(nn.Module):
    """What MuZero asks of a network whose latents are vectors; subclasses make the parts."""

    latent_size: int
    encoder: Any
    representation: Any
    action_rows: nn.Parameter
    dynamics: Any
    reward: Any
    trunk: Any
    policy: Any
    value: Any
    prefix: ValuePrefix | None

    def represent(self, observation: Observation) -> Tensor:
        """Return the latents [B, latent] of observations."""
        return rescale(self.representation(self.encoder(observation)))

    def imagine(self, latent: Tensor, action: Tensor) -> Tensor:
        """Return the predicted latents [B, latent] after one action [B] each."""
        rows = functional.embedding(action, self.action_rows)
        return rescale(self.dynamics(latent, rows) + latent)

    def predict(self, latent: Tensor) -> Prediction:
        """Return policy and value for latents [..., latent]."""
        features = torch.relu(self.trunk(latent))
        return Prediction(self.policy(features), self.value(features))

    def rewards(self, latents: Tensor) -> Tensor:
        """Return the logits [K, B, 2S + 1] of rewards, or of value prefixes, for K predicted latents [K, B, latent]."""
        return self.reward(latents if self.prefix is None else self.prefix(latents))

    def values(self, observation: Observation) -> Tensor:
        """Return the values [B] of observations."""
        return expected_scalar(self.predict(self.represent(observation)).value)


class PlanningNetwork(LatentNetwork):
    """A network of perceptrons, with a value prefix and consistency heads where they are asked for."""

    def __init__(
        self,
        encoder: Encoder,
        actions: int,
        *,
        latent_size: int,
        hidden_size: int,
        support_size: int,
        projection_size: int | None = None,
        prefix_size: int | None = None,
        prefix_horizon: int = 5,
        generator: torch.Generator,
    ) -> None:
        """`projection_size` adds the consistency heads, `prefix_size` predicts rewards by a value prefix."""
        super().__init__()
        options: dict[str, Any] = {"orthogonal": False, "generator": generator}
        self.latent_size = latent_size
        self.encoder = encoder
        self.representation = Block(self.encoder.width, hidden_size, latent_size, generator=generator)
        self.action_rows = nn.Parameter(torch.empty(actions, hidden_size))
        nn.init.uniform_(self.action_rows, -(actions**-0.5), actions**-0.5, generator=generator)
        self.dynamics = Block(latent_size, hidden_size, latent_size, generator=generator)
        self.prefix = None
        if prefix_size is not None:
            self.prefix = ValuePrefix(latent_size, prefix_size, prefix_horizon, generator=generator)
        self.reward = _head(prefix_size or latent_size, hidden_size, 2 * support_size + 1, generator)
        self.trunk = linear(latent_size, hidden_size, **options)
        self.policy = zeros(linear(hidden_size, actions, **options))
        self.value = zeros(linear(hidden_size, 2 * support_size + 1, **options))
        self.projector = self.predictor = None
        if projection_size is not None:
            self.projector = Block(latent_size, projection_size, projection_size, generator=generator)
            self.predictor = Block(projection_size, projection_size, projection_size, generator=generator)

    def similarity(self, imagined: Tensor, encoded: Tensor) -> Tensor:
        """Return the cosine similarity [...] of predicted latents and those encoded from the true observations."""
        assert self.projector is not None
        assert self.predictor is not None
        with torch.no_grad():
            goal = self.projector(encoded)
        return functional.cosine_similarity(self.predictor(self.projector(imagined)), goal, dim=-1)


class Block(nn.Module):
    """A linear layer with normalisation and ReLU, then a plain linear layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.first = linear(inputs, hidden, orthogonal=False, generator=generator)
        self.norm = nn.LayerNorm(hidden)
        self.second = linear(hidden, outputs, orthogonal=False, generator=generator)

    def forward(self, features: Tensor, rows: Tensor | None = None) -> Tensor:
        """Map [B, inputs] to [B, outputs]; `rows` [B, hidden] are added to the first layer's output."""
        hidden = self.first(features)
        return self.second(torch.relu(self.norm(hidden if rows is None else hidden + rows)))


class ValuePrefix(nn.Module):
    """A recurrent cell over predicted latents, whose output predicts the sum of rewards since its last reset."""

    def __init__(self, inputs: int, size: int, horizon: int, *, generator: torch.Generator) -> None:
        """The cell's state is reset after every `horizon` steps."""
        super().__init__()
        self.size = size
        self.horizon = horizon
        for name, width in (("input", inputs), ("state", size)):
            weight, bias = torch.empty(4 * size, width), torch.empty(4 * size)
            initialize(weight, bias, orthogonal=False, gain=1.0, generator=generator)
            self.register_parameter(f"{name}_weight", nn.Parameter(weight))
            self.register_parameter(f"{name}_bias", nn.Parameter(bias))

    def step(self, latent: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the next state, output [B, size] and memory [B, size], after a latent [B, inputs]."""
        output, memory = torch.lstm_cell(
            latent,
            list(state),
            self.get_parameter("input_weight"),
            self.get_parameter("state_weight"),
            self.get_parameter("input_bias"),
            self.get_parameter("state_bias"),
        )
        return output, memory

    def forward(self, latents: Tensor) -> Tensor:
        """Return the outputs [K, B, size] for K steps [K, B, inputs]."""
        outputs = []
        state = self._reset(latents[0])
        for number, latent in enumerate(latents):
            if number and number % self.horizon == 0:
                state = self._reset(latent)
            state = self.step(latent, state)
            outputs.append(state[0])
        return torch.stack(outputs)

    def _reset(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        zeros = latent.new_zeros(len(latent), self.size)
        return zeros, zeros


def _head(inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    first = linear(inputs, hidden, orthogonal=False, generator=generator)
    return nn.Sequential(first, nn.ReLU(), zeros(linear(hidden, outputs, orthogonal=False, generator=generator)))


def zeros(layer: nn.Linear) -> nn.Linear:
    """Set a layer to 0, so that the initial values, rewards and policies are neutral instead of noise."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
