"""Parameters of a policy with a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le


@dataclass(frozen=True)
class MemoryParams:
    """A recurrent layer between the encoder and the hidden layers."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    type: Literal["lstm", "gru"] = "lstm"
    """Kind of the recurrent layer."""

    size: Annotated[int, Ge(1), Le(1 << 14)] = 64
    """Its width."""

    layers: Annotated[int, Ge(1), Le(8)] = 1
    """Recurrent layers on top of each other."""

    sequence_length: Annotated[int, Ge(1)] = 32
    """Steps over which gradients flow back in time; experience is cut into sequences of this length, and at the ends of
    episodes."""

    chrono_init: Annotated[int, Ge(3), Le(1 << 20)] | None = None
    """Draw the biases of the gates so that units remember for 1 to this many steps at first (Tallec and Ollivier 2018,
    arXiv 1804.11188); null: they forget about half in every step."""

    @property
    def memory_size(self) -> int:
        """Numbers that the memory of one recurrent layer stack consists of."""
        return (2 if self.type == "lstm" else 1) * self.layers * self.size

    def weights(self, inputs: int) -> int:
        """Return the number of weights and biases of the recurrent layers, given the number of features."""
        gates = 4 if self.type == "lstm" else 3
        each = gates * self.size * (self.size + 2)
        return self.layers * each + gates * self.size * (inputs + (self.layers - 1) * self.size)


@dataclass(frozen=True)
class RecurrentParams(MemoryParams):
    """The memory of a policy that learns from rollouts."""

    separate_critic: bool = True
    """Whether the critic has a memory of its own."""


@dataclass(frozen=True)
class ReplayedMemoryParams(MemoryParams):
    """The memory of a policy that learns from a replay, in which the memories of acting are stored."""

    burn_in: Annotated[int, Ge(0)] = 16
    """Steps before a sequence over which its stored memory is brought up to date, without gradients."""
