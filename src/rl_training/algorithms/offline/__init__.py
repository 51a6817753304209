"""Algorithms that learn from a dataset: imitation, and value learning that stays close to the data."""
