"""Searches that never leave compiled code: perceptrons and world transformers in flat arrays."""
