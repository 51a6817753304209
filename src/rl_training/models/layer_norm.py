"""Perceptrons with layer normalisation, several of one shape evaluated together."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rl_training.models.layers import StackedMLP, parameter_pairs


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

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, inputs], shared by all networks, to [count, B, outputs]."""
        hidden = features.expand(self.count, *features.shape)
        norms = self._norms()
        for layer, (weight, bias) in enumerate(parameter_pairs(self)):
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

    def _norms(self) -> Iterator[tuple[Tensor, Tensor]]:
        values = iter(self.norms)
        return zip(values, values, strict=True)


def _normalized(hidden: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, nn.functional.layer_norm(hidden, hidden.shape[-1:]), scale)
