"""Import of models that Stable-Baselines3 saved."""
