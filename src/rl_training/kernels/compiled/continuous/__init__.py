"""Compiled updates of actors and critics for continuous actions."""
