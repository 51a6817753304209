"""Batched tree search over a learned model.

`search` runs a search for a batch of roots with any model (`model`) by any rule (`rule`): `puct` and `gumbel` are the
package's own. `tree` holds the arrays, `growth` makes them grow, `compilation` compiles the formulas.
"""
