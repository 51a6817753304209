"""EfficientZero (Ye et al. 2021, arXiv 2111.00210): MuZero with a value prefix, consistency and off-policy correction.

The value prefix is searched by `planning.models.PrefixModel`, consistency is a term of `planning.unroll.muzero_loss`,
shorter returns and policies searched again are made in `planning.batches`.
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
    """Weight of the similarity between imagined and observed latents (EfficientZero)."""
    shrink_n_step: bool = True
    """Sum fewer rewards the older a step is (EfficientZero)."""
    reanalyze_ratio: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Share of each batch whose policies are searched again with the target network."""
    augmentation: Literal["none", "shift"] = "shift"
    """Images: shift them by up to four pixels (one below 36x36) whenever they are learned from."""


class EfficientZero(MuZero):
    """MuZero with the defaults of `EfficientZeroParams`."""
