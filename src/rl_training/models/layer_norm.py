"""Perceptrons with layer normalisation and dropout, several of one shape evaluated together."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rl_training.models.layers import StackedMLP, of_networks, parameter_pairs


class LayerNormMLP(StackedMLP):
    """A `StackedMLP` that normalises each hidden layer after its activation (Ba et al. 2016, arXiv 1607.06450).

    Bounded features keep critics from extrapolating to large values for actions outside of a dataset.
    """

    def __init__(
        self,
        count: int,
        inputs: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        *,
        orthogonal: bool,
        generator: torch.Generator,
        outputs: int | None = None,
    ) -> None:
        super().__init__(
            count, inputs, hidden_sizes, activation, orthogonal=orthogonal, generator=generator, outputs=outputs
        )
        self.norms = nn.ParameterList(
            [value for width in hidden_sizes for value in (torch.ones(count, 1, width), torch.zeros(count, 1, width))]
        )  # [count, 1, width] scale and shift of each hidden layer

    def forward(self, features: Tensor, networks: Tensor | None = None) -> Tensor:
        """Map features [B, inputs], shared by all networks, to [count, B, outputs], or by those in `networks`."""
        hidden = features.expand(self.count if networks is None else len(networks), *features.shape)
        norms = self._norms(networks)
        for layer, (weight, bias) in enumerate(of_networks(parameter_pairs(self), networks)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if layer < self.activated:
                hidden = _normalized(self.activation(hidden), *next(norms))
        return hidden

    def one(self, network: int, features: Tensor) -> Tensor:
        """Map features [B, inputs] through a single network to [B, outputs]."""
        hidden = features
        norms = self._norms()
        for layer, (weight, bias) in enumerate(parameter_pairs(self)):
            hidden = torch.addmm(bias[network], hidden, weight[network])
            if layer < self.activated:
                scale, shift = next(norms)
                hidden = _normalized(self.activation(hidden), scale[network], shift[network])
        return hidden

    def _norms(self, networks: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        values = iter(self.norms)
        return of_networks(zip(values, values, strict=True), networks)


class DropoutMLP(LayerNormMLP):
    """A `StackedMLP` whose hidden layers pass dropout, layer normalisation and then their activation.

    This is the order of DroQ (Hiraoka et al. 2022, arXiv 2110.02034), and without dropout that of PQN (Gallici et al.
    2025, arXiv 2407.04811). Units are dropped only where a generator is given to draw them from.
    """

    def __init__(
        self,
        count: int,
        inputs: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        *,
        dropout: float = 0.0,
        layer_norm: bool = True,
        orthogonal: bool,
        generator: torch.Generator,
        outputs: int | None = None,
    ) -> None:
        """`dropout` is the probability with which a unit is dropped."""
        super().__init__(
            count, inputs, hidden_sizes, activation, orthogonal=orthogonal, generator=generator, outputs=outputs
        )
        self.dropout = dropout
        if not layer_norm:
            self.norms = nn.ParameterList()

    def forward(
        self, features: Tensor, networks: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Map features [B, inputs], shared by all networks, to [count, B, outputs], or by those in `networks`."""
        hidden = features.expand(self.count if networks is None else len(networks), *features.shape)
        norms = self._norms(networks)
        for layer, (weight, bias) in enumerate(of_networks(parameter_pairs(self), networks)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if layer < self.activated:
                hidden = self._activated(hidden, next(norms, None), generator)
        return hidden

    def one(self, network: int, features: Tensor) -> Tensor:
        """Map features [B, inputs] through a single network to [B, outputs]; nothing is dropped."""
        hidden = features
        norms = self._norms()
        for layer, (weight, bias) in enumerate(parameter_pairs(self)):
            hidden = torch.addmm(bias[network], hidden, weight[network])
            if layer < self.activated:
                norm = next(norms, None)
                hidden = self._activated(hidden, None if norm is None else (norm[0][network], norm[1][network]), None)
        return hidden

    def _activated(
        self, hidden: Tensor, norm: tuple[Tensor, Tensor] | None, generator: torch.Generator | None
    ) -> Tensor:
        if generator is not None and self.dropout:
            hidden = hidden * dropout_factors(hidden, self.dropout, generator)
        return self.activation(hidden if norm is None else _normalized(hidden, *norm))


def _normalized(hidden: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, nn.functional.layer_norm(hidden, hidden.shape[-1:]), scale)


def dropout_factors(like: Tensor, dropout: float, generator: torch.Generator) -> Tensor:
    """Return what dropout multiplies a tensor by: 0 with probability `dropout`, otherwise 1 / (1 - dropout).

    Only the distances between dropped units, which are geometric, are drawn. A draw for every unit would take as long
    as the layer's product.
    """
    size = like.numel()
    expected = size * dropout
    draws = math.ceil(expected + 8.0 * math.sqrt(expected) + 8.0)  # enough to pass the end: fewer have odds of 1e-15
    between = like.new_empty(draws).exponential_(-math.log1p(-dropout), generator=generator).floor_()
    dropped = (between.long() + 1).cumsum(0) - 1
    factors = like.new_full((size + 1,), 1.0 / (1.0 - dropout))  # the last is for all draws past the end
    return factors.index_fill_(0, dropped.clamp_(max=size), 0.0)[:size].view(like.shape)
