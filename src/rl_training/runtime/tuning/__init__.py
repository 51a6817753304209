"""The search of settings: trials, their seeds, and the confirmation on fresh seeds."""
