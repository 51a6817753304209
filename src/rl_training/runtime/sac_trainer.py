"""Training of soft actor-critic, continuous and discrete: the off-policy loop."""

from __future__ import annotations

from rl_training.runtime.off_policy import train_off_policy

train_sac = train_off_policy
"""Train SAC as configured, or continue from a checkpoint: takes `(config, *, callbacks, checkpoint)`."""
