"""Gumbel MuZero (Danihelka et al. 2022): MuZero with sequential halving at the root, trained on the improved policy.

Its search is `search.gumbel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.muzero_params import MuZeroParams


@dataclass(frozen=True)
class GumbelMuZeroParams(MuZeroParams):
    """Parameters of Gumbel MuZero."""

    search: Literal["puct", "gumbel"] = "gumbel"
    """Selection rule: PUCT, by prior and visits (MuZero), or sequential halving (Gumbel MuZero)."""
    num_simulations: Annotated[int, Ge(1)] = 16
    """Simulations per search."""


class GumbelMuZero(MuZero):
    """MuZero with the defaults of `GumbelMuZeroParams`."""

    acting_networks = ("network",)
