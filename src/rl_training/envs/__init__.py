"""Creation and vectorisation of environments, their wrappers, snapshots and normalisation.

Nothing in this package imports torch, so that worker processes start fast.
"""
