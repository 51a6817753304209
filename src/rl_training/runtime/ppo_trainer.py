"""Training of PPO and of A2C, its special case: the on-policy loop."""

from __future__ import annotations

from rl_training.runtime.on_policy import train_on_policy

train_ppo = train_on_policy
"""Train PPO as configured, or go on from a checkpoint: takes `(config, *, callbacks, checkpoint)`."""
