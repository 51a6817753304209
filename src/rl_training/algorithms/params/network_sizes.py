"""How many weights networks have, counted before they are made."""

from __future__ import annotations

from itertools import pairwise


def dense_weights(*widths: int) -> int:
    """Return the weights and biases of dense layers between these widths."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
