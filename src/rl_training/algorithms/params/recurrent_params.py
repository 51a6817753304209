"""Parameters of a policy with a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le


@dataclass(frozen=True)
class RecurrentParams:
    """A recurrent layer between the encoder and the hidden layers of actor and critic."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    type: Literal["lstm", "gru"] = "lstm"
    """Kind of the recurrent layer."""

    size: Annotated[int, Ge(1), Le(1 << 14)] = 64
    """Its width."""

    layers: Annotated[int, Ge(1), Le(8)] = 1
    """Recurrent layers on top of each other."""

    sequence_length: Annotated[int, Ge(1)] = 32
    """Steps over which gradients flow back in time; a rollout is cut into sequences of this length, and at the ends of
    episodes."""

    separate_critic: bool = True
    """Whether the critic has a memory of its own."""
