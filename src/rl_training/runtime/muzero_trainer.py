"""Training of MuZero: the planning loop."""

from __future__ import annotations

from rl_training.runtime.planning import train_planning

train_muzero = train_planning
"""Train MuZero as configured, or continue from a checkpoint: takes `(config, *, callbacks, checkpoint)`."""
