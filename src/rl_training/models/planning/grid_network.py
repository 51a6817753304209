"""The network of planning on boards: latents are planes over the cells, and convolutions predict the next ones.

B is the batch size, A the number of actions, S the size of the scalars' support, C the number of planes of a latent.
What a move changes near a cell is learned once for all cells. Vectors list a latent cell by cell, C numbers each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.encoders import Encoder, VectorEncoder
from rl_training.models.layers import convolution, linear
from rl_training.models.planning.planning_network import LatentNetwork, zeros

ACTION_RANGE = 0.02
KERNEL = 3
SUMMARY = 8
"""Numbers per cell that the heads see."""


class GridNetwork(LatentNetwork):
    """Encodes boards, predicts next latents, rewards, values and policies."""

    def __init__(
        self,
        encoder: Encoder,
        actions: int,
        shape: Sequence[int],
        *,
        filters: int,
        blocks: int,
        hidden_size: int,
        support_size: int,
        generator: torch.Generator,
    ) -> None:
        """`shape` says how many planes, rows and columns an observation lists, in this order."""
        super().__init__()
        if type(encoder) is not VectorEncoder or len(shape) != 3 or encoder.width != math.prod(shape):
            raise ConfigError(
                f"algo_kwargs.grid.shape: {list(shape)} does not fit an observation that is encoded as "
                f"{encoder.width} numbers; write [planes, rows, columns], whose product it is"
            )
        planes, *board = shape
        cells, atoms = math.prod(board), 2 * support_size + 1
        self.latent_size = cells * filters
        self.encoder = encoder
        self.representation = Convolutions(planes, board, filters, blocks, planes_first=True, generator=generator)
        self.action_rows = nn.Parameter(torch.empty(actions, self.latent_size))
        # Small: a row has its own number in every cell, which would drown what the board says there.
        nn.init.uniform_(self.action_rows, -ACTION_RANGE, ACTION_RANGE, generator=generator)
        self.dynamics = Convolutions(filters, board, filters, blocks, planes_first=False, generator=generator)
        self.prefix = None
        self.reward = nn.Sequential(
            Summary(filters, cells, hidden_size, generator=generator),
            nn.ReLU(),
            zeros(linear(hidden_size, atoms, orthogonal=False, generator=generator)),
        )
        self.trunk = Summary(filters, cells, hidden_size, generator=generator)
        self.policy = zeros(linear(hidden_size, actions, orthogonal=False, generator=generator))
        self.value = zeros(linear(hidden_size, atoms, orthogonal=False, generator=generator))


class Convolutions(nn.Module):
    """A convolution with normalisation and ReLU, then residual ones."""

    def __init__(
        self,
        planes: int,
        board: Sequence[int],
        filters: int,
        blocks: int,
        *,
        planes_first: bool,
        generator: torch.Generator,
    ) -> None:
        """`planes_first`: the input lists a board of `planes` plane by plane, not cell by cell."""
        super().__init__()
        self.planes = planes
        self.rows, self.columns = board
        self.planes_first = planes_first
        counts = (planes, *(filters,) * blocks)
        options: dict[str, Any] = {"orthogonal": False, "generator": generator}
        self.layers = nn.ModuleList(convolution(count, filters, KERNEL, 1, KERNEL // 2, **options) for count in counts)
        self.norms = nn.ModuleList(nn.GroupNorm(1, filters) for _ in counts)

    def forward(self, features: Tensor, rows: Tensor | None = None) -> Tensor:
        """Map [B, inputs] to latents [B, latent]; `rows` [B, latent] are added to the first convolution's output."""
        if self.planes_first:
            image = features.view(-1, self.planes, self.rows, self.columns)
            image = image.contiguous(memory_format=torch.channels_last)
        else:
            image = self._as_planes(features)
        hidden = self.layers[0](image)
        if rows is not None:
            hidden = hidden + self._as_planes(rows)
        hidden = torch.relu(self.norms[0](hidden))
        for layer, norm in zip(list(self.layers)[1:], list(self.norms)[1:], strict=True):
            hidden = torch.relu(norm(layer(hidden))) + hidden
        return hidden.permute(0, 2, 3, 1).flatten(1)

    def _as_planes(self, latent: Tensor) -> Tensor:
        """View vectors [B, latent] as images [B, C, rows, columns] whose channels lie beside each other in memory."""
        return latent.unflatten(-1, (self.rows, self.columns, -1)).permute(0, 3, 1, 2)


class Summary(nn.Module):
    """A few numbers per cell, and a linear layer over all of them."""

    def __init__(self, filters: int, cells: int, outputs: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.filters = filters
        self.each = linear(filters, SUMMARY, orthogonal=False, generator=generator)
        self.all = linear(SUMMARY * cells, outputs, orthogonal=False, generator=generator)

    def forward(self, latent: Tensor) -> Tensor:
        """Map latents [..., latent] to [..., outputs]."""
        cells = latent.unflatten(-1, (-1, self.filters))
        return self.all(torch.relu(self.each(cells)).flatten(-2))
