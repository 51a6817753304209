"""Save and restore the state of environments."""
