"""Batched tree search over a learned model: PUCT and Gumbel MuZero in one search.

`rules` says how actions are chosen, `tree` holds the arrays, `search` runs a search for a batch of roots with any torch
model (`model`) or, compiled as a whole, with multi-layer perceptrons (`mlp`) and world transformers (`transformer`).
The modules named `compiled_*` import numba and are loaded by the first search. Numba's cache notices changes of the
file that defines a function, not of those it calls: delete `__pycache__` after changing a compiled function by hand.
"""
