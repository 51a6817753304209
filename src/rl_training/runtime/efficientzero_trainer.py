"""Training of EfficientZero: the planning loop."""

from __future__ import annotations

from rl_training.runtime.planning import train_planning

train_efficientzero = train_planning
"""Train EfficientZero as configured, or continue from a checkpoint: takes `(config, *, callbacks, checkpoint)`."""
