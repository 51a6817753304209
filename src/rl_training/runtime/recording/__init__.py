"""Counters, metrics, progress and files of a run."""
