"""Networks with a memory, actor and critic or values of actions: recurrent layers over sequences of observations.

A memory is one vector of floats per environment, zero at the start of an episode, so that it is stored and passed on
like an observation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.distributions import Distribution
from rl_training.models.encoders import Encoder
from rl_training.models.heads import make_action_head
from rl_training.models.layers import StackedMLP, linear
from rl_training.models.q_network import QNetwork


class Sequences(NamedTuple):
    """Which rows of a batch follow each other in time: S sequences, one after the other."""

    lengths: Tensor  # [S] int64, at least 1 each
    memory: Tensor  # [S, memory size] before each sequence's first row


class Padded(NamedTuple):
    """Sequences of rows side by side, padded at the back, where nothing follows."""

    features: Tensor  # [longest, S, width]
    row: Tensor  # [B] place of a row in its sequence
    column: Tensor  # [B] sequence of a row

    @classmethod
    def of(cls, features: Tensor, lengths: Tensor) -> Padded:
        """Put the rows [B, width] of sequences [S] side by side."""
        longest, count = int(lengths.max()), len(lengths)
        column = torch.repeat_interleave(torch.arange(count, device=lengths.device), lengths)
        first = torch.cumsum(lengths, 0) - lengths
        row = torch.arange(len(features), device=lengths.device) - first[column]
        padded = features.new_zeros(longest, count, features.shape[1])
        padded[row, column] = features
        return cls(padded, row, column)

    def through(self, layers: nn.Module, memory: Tensor) -> Tensor:
        """Return the outputs [B, size] of recurrent layers that begin with memories [S, numbers], by one call."""
        outputs: Tensor = layers(self.features, _state(layers, memory))[0]
        return outputs[self.row, self.column]


class Step(NamedTuple):
    """What the model makes of one step of every environment."""

    actor: Tensor  # [B, width] the actor's last hidden layer
    value: Tensor  # [B]
    memory: Tensor  # [B, memory size] after the step


class RecurrentActorCritic(nn.Module):
    """An encoder, recurrent layers, one stack of hidden layers each for actor and critic, and their heads."""

    def __init__(
        self,
        encoder: Encoder,
        action_space: Space[Any],
        *,
        kind: str,
        size: int,
        layers: int,
        separate_critic: bool,
        chrono_init: int | None = None,
        hidden_sizes: tuple[int, ...] | None = None,
        activation: str = "tanh",
        orthogonal_init: bool = True,
        log_std: str = "state_independent",
        log_std_init: float = 0.0,
        use_sde: bool = False,
        generator: torch.Generator,
    ) -> None:
        """`hidden_sizes` None: heads directly on the recurrent layers."""
        super().__init__()
        self.encoder = encoder
        start: Any = {"chrono_init": chrono_init, "orthogonal": orthogonal_init, "generator": generator}
        self.memories = nn.ModuleList(
            make_layers(kind, encoder.width, size, layers, **start) for _ in range(2 if separate_critic else 1)
        )
        self.actor, self.critic = (
            StackedMLP(1, size, hidden_sizes or (), activation, orthogonal=orthogonal_init, generator=generator)
            for _ in range(2)
        )
        self.head = make_action_head(
            action_space,
            self.actor.outputs,
            log_std=log_std,
            log_std_init=log_std_init,
            use_sde=use_sde,
            orthogonal=orthogonal_init,
            generator=generator,
        )
        self.value_head = linear(self.critic.outputs, 1, orthogonal=orthogonal_init, gain=1.0, generator=generator)

    @property
    def memory_size(self) -> int:
        """Numbers that an environment's memory consists of."""
        return sum(memory_numbers(layers) for layers in self.memories)

    def step(self, observation: Observation, memory: Tensor) -> Step:
        """Take one step from observations [B, ...] and memories [B, memory size]."""
        features = self.encoder(observation)
        parts = memory.chunk(len(self.memories), dim=1)
        outputs, after = zip(
            *(one_step(layers, features, part) for layers, part in zip(self.memories, parts, strict=True)), strict=True
        )
        return Step(self.actor.one(0, outputs[0]), self._value(outputs[-1]), torch.cat(after, dim=1))

    def run(self, observation: Observation, mask: Tensor | None, sequences: Sequences) -> tuple[Distribution, Tensor]:
        """Return the policy and the values [B] of the rows of sequences; padding is left out of both."""
        padded = Padded.of(self.encoder(observation), sequences.lengths)
        parts = sequences.memory.chunk(len(self.memories), dim=1)
        outputs = [padded.through(layers, part) for layers, part in zip(self.memories, parts, strict=True)]
        return self.head(self.actor.one(0, outputs[0]), mask), self._value(outputs[-1])

    def policy_of(self, actor: Tensor, mask: Tensor | None) -> Distribution:
        """Return the policy for the actor's last hidden layer [B, width]."""
        distribution: Distribution = self.head(actor, mask)
        return distribution

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions [B, ...] in the format of the environment's action space."""
        return self.head.env_action(action)

    def _value(self, features: Tensor) -> Tensor:
        value: Tensor = self.value_head(self.critic.one(0, features)).squeeze(-1)
        return value


class RecurrentQNetwork(QNetwork):
    """An encoder, recurrent layers, and the streams of a Q-network on top of them."""

    def __init__(
        self,
        encoder: Encoder,
        num_actions: int,
        *,
        kind: str,
        size: int,
        layers: int,
        chrono_init: int | None = None,
        hidden_sizes: tuple[int, ...] | None,
        generator: torch.Generator,
        **settings: Any,
    ) -> None:
        """`hidden_sizes` None: outputs directly on the recurrent layers. `settings` are those of a Q-network."""
        hidden = hidden_sizes or ()
        super().__init__(encoder, num_actions, hidden_sizes=hidden, inputs=size, generator=generator, **settings)
        start: Any = {"chrono_init": chrono_init, "orthogonal": False, "generator": generator}
        self.layers = make_layers(kind, encoder.width, size, layers, **start)

    @property
    def memory_size(self) -> int:
        """Numbers that an environment's memory consists of."""
        return memory_numbers(self.layers)

    def step(self, observation: Observation, memory: Tensor, noisy: bool = False) -> tuple[Tensor, Tensor]:
        """Return outputs [B, actions, outputs] and memories after the step, from those before it."""
        features, after = one_step(self.layers, self.encoder(observation), memory)
        return self.outputs_of(features, noisy), after

    def run(self, observation: Observation, sequences: Sequences, noisy: bool = False) -> Tensor:
        """Return the outputs [B, actions, outputs] of the rows of sequences; padding is left out of them."""
        padded = Padded.of(self.encoder(observation), sequences.lengths)
        return self.outputs_of(padded.through(self.layers, sequences.memory), noisy)

    def memory_after(self, observation: Observation, sequences: Sequences) -> Tensor:
        """Return the memories [S, memory size] after all rows of sequences, of which some may be empty."""
        lengths, memory = sequences
        some = torch.nonzero(lengths).squeeze(1)
        if not len(some):
            return memory
        padded = Padded.of(self.encoder(observation), lengths[some])
        packed = nn.utils.rnn.pack_padded_sequence(padded.features, lengths[some].cpu(), enforce_sorted=False)
        after = self.layers(packed, _state(self.layers, memory[some]))[1]
        return memory.index_copy(0, some, _flat(self.layers, after))


def make_layers(
    kind: str,
    inputs: int,
    size: int,
    layers: int,
    *,
    chrono_init: int | None,
    orthogonal: bool,
    generator: torch.Generator,
) -> nn.Module:
    """Return recurrent layers: orthogonal with zero biases, or uniform as torch draws them.

    With `chrono_init` the units at first remember for 1 to that many steps.
    """
    made: nn.Module = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, size, layers)
    _initialize(made, orthogonal=orthogonal, generator=generator)
    if chrono_init is not None:
        _bias_gates(made, chrono_init, generator)
    return made


def one_step(layers: nn.Module, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, size] and memories [B, numbers] of recurrent layers after features [B, width]."""
    outputs, after = layers(features.unsqueeze(0), _state(layers, memory))
    return outputs[0], _flat(layers, after)


def memory_numbers(layers: nn.Module) -> int:
    """Return the size of the memory of recurrent layers."""
    vectors, count, size = _form(layers)
    return vectors * count * size


def _form(layers: Any) -> tuple[int, int, int]:
    """Return the vectors of a layer's state, the number of layers, and their size."""
    return 2 if isinstance(layers, nn.LSTM) else 1, layers.num_layers, layers.hidden_size


def _state(layers: nn.Module, memory: Tensor) -> Any:
    """Return the state of recurrent layers, as torch takes it, from flat memories [B, numbers]."""
    parts = memory.unflatten(1, _form(layers)).permute(1, 2, 0, 3).contiguous()  # [vectors, layers, B, size]
    return tuple(parts) if isinstance(layers, nn.LSTM) else parts[0]


def _flat(layers: nn.Module, state: Any) -> Tensor:
    """Return the state of recurrent layers as flat memories [B, numbers]."""
    vectors = torch.stack(state) if isinstance(layers, nn.LSTM) else state.unsqueeze(0)  # [vectors, layers, B, size]
    return vectors.permute(2, 0, 1, 3).flatten(1)


def _initialize(memory: nn.Module, *, orthogonal: bool, generator: torch.Generator) -> None:
    """Draw the weights of recurrent layers from a generator."""
    with torch.no_grad():
        for name, weight in memory.named_parameters():
            if orthogonal and "weight" in name:
                nn.init.orthogonal_(weight, generator=generator)
            elif orthogonal:
                weight.zero_()
            else:
                bound = 1 / math.sqrt(weight.shape[-1] if "weight_hh" in name else memory.hidden_size)  # type: ignore[arg-type]
                nn.init.uniform_(weight, -bound, bound, generator=generator)


@torch.no_grad()
def _bias_gates(memory: nn.Module, longest: int, generator: torch.Generator) -> None:
    """Draw the biases of the gates so that units forget over 1 to `longest` steps (Tallec and Ollivier 2018)."""
    size: Any = memory.hidden_size
    for name, bias in memory.named_parameters():
        if "bias" not in name:
            continue
        # Torch adds up two biases of every gate: one of them has all of it.
        share = torch.zeros(size)
        if "bias_ih" in name:
            share = torch.empty(size).uniform_(1, longest - 1, generator=generator).log_()
        bias[size : 2 * size] = share  # an LSTM's forget gate, a GRU's update gate: both keep what was remembered
        if isinstance(memory, nn.LSTM):
            bias[:size] = -share  # the input gate
