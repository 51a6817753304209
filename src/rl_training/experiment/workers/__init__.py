"""Checks of the processes that a run uses besides its own."""
