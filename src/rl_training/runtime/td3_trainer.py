"""Training of TD3 and DDPG: the off-policy loop."""

from __future__ import annotations

from rl_training.runtime.off_policy import train_off_policy

train_td3 = train_off_policy
"""Train TD3 as configured, or continue from a checkpoint: takes `(config, *, callbacks, checkpoint)`."""
