"""Training of DQN and its variants: the off-policy loop."""

from __future__ import annotations

from rl_training.runtime.off_policy import train_off_policy

train_dqn = train_off_policy
"""Train DQN as configured, or continue from a checkpoint: takes `(config, *, callbacks, checkpoint)`."""
