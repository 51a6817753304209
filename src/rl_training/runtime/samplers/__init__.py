"""Samplers: processes that hold a copy of the policy, act in a part of the environments and return whole rollouts."""
