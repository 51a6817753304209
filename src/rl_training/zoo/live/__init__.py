"""Looking at runs while they go on: `axiomrl watch`."""
