"""User code: finds it, decides whether to trust it, imports it."""
