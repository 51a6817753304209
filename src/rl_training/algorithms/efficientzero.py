"""EfficientZero (Ye et al. 2021, arXiv 2111.00210): MuZero with a value prefix, consistency and off-policy correction.

`planning.models.PrefixModel` searches with the value prefix, consistency is a term of `planning.unroll.muzero_loss`,
shorter returns and reanalysed policies are made in `planning.batches`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.muzero_params import MuZeroParams


@dataclass(frozen=True)
class EfficientZeroParams(MuZeroParams):
    """Parameters of EfficientZero: MuZero with a value prefix, consistency and off-policy correction."""

    value_prefix: bool = True
    """Predict sums of rewards by a recurrent cell instead of single rewards (EfficientZero)."""
    consistency_coef: Annotated[float, Ge(0)] = 2.0
    """Weight of the similarity between predicted and encoded latents (EfficientZero)."""
    shrink_n_step: bool = True
    """Sum fewer rewards for older steps (EfficientZero)."""
    reanalyze_ratio: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Fraction of each batch whose policies are recomputed by a new search with the target network."""
    augmentation: Literal["none", "shift"] = "shift"
    """Images: randomly shift them by up to four pixels (one if smaller than 36x36) in training batches."""


class EfficientZero(MuZero):
    """MuZero with the defaults of `EfficientZeroParams`."""

    acting_networks = ("network",)
