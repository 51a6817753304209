"""Parameters of planning on the cells of a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le

from rl_training.algorithms.params.network_sizes import dense_weights


@dataclass(frozen=True)
class GridParams:
    """Latents as planes over the cells of a board."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    shape: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)], Annotated[int, Ge(1)]]
    """Planes, rows and columns that an observation lists, in this order."""

    filters: Annotated[int, Ge(1), Le(1 << 10)] = 32
    """Planes of a latent."""

    blocks: Annotated[int, Ge(0), Le(32)] = 1
    """Residual convolutions after the first one, in the representation and in the dynamics each."""

    @property
    def cells(self) -> int:
        """Cells of the board."""
        return math.prod(self.shape[1:])

    @property
    def latent_size(self) -> int:
        """Numbers of a latent."""
        return self.filters * self.cells

    def weights(self, hidden: int, actions: int, atoms: int) -> int:
        """Return a lower bound on the number of weights, given the widths of the heads."""
        convolutions = 9 * self.filters * (self.shape[0] + (2 * self.blocks + 1) * self.filters)
        heads = 2 * dense_weights(self.cells, hidden) + dense_weights(hidden, actions + 2 * atoms)
        return convolutions + actions * self.latent_size + heads
