"""Preparation and checks before a run starts or continues."""
