"""Datasets of recorded episodes in Minari's format: reading, checking, writing; no torch."""
