"""PettingZoo's parallel environments, whose agents share one policy."""
