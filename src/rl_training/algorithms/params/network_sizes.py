"""Numbers of weights of networks, computed before the networks are made."""

from __future__ import annotations

from itertools import pairwise


def dense_weights(*widths: int) -> int:
    """Return the number of weights and biases of dense layers with these widths."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
