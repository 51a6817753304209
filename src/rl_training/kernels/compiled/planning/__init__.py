"""Compiled parts of planning networks: their layers, one after another in time, and the gradient of an unroll."""
