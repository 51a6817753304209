"""Batched tree search with a learned model.

`search` runs a search for a batch of roots with any model (`model`) and any selection rule (`rule`); `puct` and
`gumbel` are the rules of this package. `tree` holds the arrays, `growth` expands and backs up, `compilation` compiles
functions.
"""
