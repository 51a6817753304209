"""Kernels of algorithms for continuous actions."""
