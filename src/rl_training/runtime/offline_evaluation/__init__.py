"""Evaluates the policy of a checkpoint on a dataset, without an environment."""
