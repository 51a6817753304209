"""Training of PPO and A2C: the on-policy loop."""

from __future__ import annotations

from rl_training.runtime.on_policy import train_on_policy

train_ppo = train_on_policy
"""Train PPO as configured, or continue from a checkpoint: takes `(config, *, callbacks, checkpoint)`."""
